//! `projector demo`: a whole pipeline in one process, checked against a model that shares nothing with it.
//!
//! An embedded broker gets the sample shop's events; the demo's projection applies them to an SQLite file. Half-way the
//! pipeline is dropped where it stands, as a crash would, and started again. At the end the tables are compared with the
//! rows that the shop's own history leads to.

pub mod broker;
pub mod events;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::app::{AppError, Outside, Service, Ways};
use crate::config::settings::{KafkaSettings, LimitSettings};
use crate::decode::Limits;
use crate::decode::registry::{MemoryRegistry, Schemas};
use crate::projection::{Projection, spec};
use crate::source::kafka::KafkaCluster;
use crate::store::sqlite::{OpenMode, SqliteStore};
use crate::store::{DeadLetterFilter, ReadStore, Rows, SharedStore, StoreError};
use crate::telemetry::Health;
use broker::EmbeddedBroker;
use events::Expected;

const PARTITIONS: i32 = 3;
const PROJECTION: &str = include_str!("../../examples/demo/product_catalogue.v1.yaml");

/// How the demo goes.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// About how many events.
    pub events: usize,
    /// The folder for the SQLite file.
    pub folder: PathBuf,
}

/// What the demo found.
#[derive(Debug, Clone, Serialize)]
pub struct DemoReport {
    /// Records produced.
    pub events: usize,
    /// Rows in all tables.
    pub rows: usize,
    /// Dead letters.
    pub dead_letters: usize,
    /// Dead letters by reason.
    pub dead_letter_reasons: BTreeMap<String, usize>,
    /// Readable ends minus positions, of all partitions.
    pub lag: u64,
    /// Whether tables and dead letters equal the model's.
    pub verified: bool,
    /// Where they differ; at most ten lines.
    pub differences: Vec<String>,
    /// Records that were applied when the pipeline was dropped.
    pub applied_before_crash: u64,
    /// The SQLite file.
    pub database: PathBuf,
    /// Some rows of the view `product_search`, with the names of its columns first.
    pub sample: Vec<Vec<String>>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// How far the demo is, for a progress bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemoStep {
    /// So many records of so many have been produced.
    Produced(usize, usize),
    /// So many records of so many have been applied.
    Applied(u64, u64),
    /// The pipeline has been dropped, and starts again.
    Dropped(u64),
}

/// Runs the demo. `progress` is called often and must return at once.
///
/// Blocks: the two lives of the pipeline have a runtime each, so that the first can be dropped.
pub fn run(options: &DemoOptions, progress: &dyn Fn(DemoStep)) -> Result<DemoReport, AppError> {
    let begun = std::time::Instant::now();
    let (samples, expected) = events::history(options.events);
    let broker = start_broker(&samples, progress)?;
    let total = samples.len() as u64;
    let life = Life { broker: &broker, database: options.folder.join("demo.sqlite"), total };

    let first = runtime()?;
    let half = first.block_on(life.until(total / 2, progress))?;
    // No drain, no commit, no farewell: whatever the tasks are doing is dropped where it stands.
    first.shutdown_background();
    progress(DemoStep::Dropped(half));

    let second = runtime()?;
    second.block_on(async {
        life.until(total, progress).await?;
        let mut report = life.report(&expected).await?;
        report.events = samples.len();
        report.applied_before_crash = half;
        report.seconds = begun.elapsed().as_secs_f64();
        Ok(report)
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, AppError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| AppError::Configuration(format!("no threads for the demo: {error}")))
}

fn start_broker(samples: &[events::Sample], progress: &dyn Fn(DemoStep)) -> Result<EmbeddedBroker, AppError> {
    let topics: Vec<(&str, i32)> = events::TOPICS.iter().map(|topic| (*topic, PARTITIONS)).collect();
    let broker = EmbeddedBroker::start(&topics).map_err(AppError::Kafka)?;
    let records = samples.iter().map(|sample| (sample.topic, sample.key.as_bytes(), sample.value.as_deref()));
    broker
        .produce(records, |produced| progress(DemoStep::Produced(produced, samples.len())))
        .map_err(AppError::Kafka)?;
    Ok(broker)
}

/// One life of the pipeline.
struct Life<'a> {
    broker: &'a EmbeddedBroker,
    database: PathBuf,
    total: u64,
}

impl Life<'_> {
    /// Runs until `goal` records are applied, and returns how many are. The last life ends cleanly.
    async fn until(&self, goal: u64, progress: &dyn Fn(DemoStep)) -> Result<u64, AppError> {
        let stop = CancellationToken::new();
        let store = open(&self.database, OpenMode::Run).await?;
        let service = Arc::new(self.service(store.clone(), &stop).await?);
        let running = tokio::spawn({
            let (service, stop) = (service.clone(), stop.clone());
            async move { service.run(stop).await }
        });
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        let applied = loop {
            pause.tick().await;
            let applied = applied(&store).await?;
            progress(DemoStep::Applied(applied, self.total));
            if applied >= goal {
                break applied;
            }
        };
        if goal == self.total {
            service.caught_up().await?;
            stop.cancel();
            drop(running.await);
        }
        Ok(applied)
    }

    async fn service(&self, store: SharedStore, stop: &CancellationToken) -> Result<Service, AppError> {
        let limits = limits();
        let cluster = KafkaCluster::new(&kafka(self.broker.bootstrap_servers()), &limits).map_err(AppError::Kafka)?;
        let registry = MemoryRegistry::default();
        for (id, schema) in events::SCHEMAS {
            registry.insert(id, schema);
        }
        let outside = Outside {
            store,
            cluster: Arc::new(cluster),
            schemas: Schemas::new(Arc::new(registry)),
            dead_letter_topics: BTreeMap::new(),
            health: Health::new(),
        };
        let ways = Ways {
            group_prefix: "demo".to_owned(),
            writers: 1,
            limits,
            // The sample registry never learns the unknown id.
            unknown_schema_wait: Duration::from_millis(200),
            grace: Duration::from_secs(5),
        };
        Service::prepare(outside, &ways, vec![projection()?], stop).await
    }

    async fn report(&self, expected: &Expected) -> Result<DemoReport, AppError> {
        let store = open(&self.database, OpenMode::Inspect).await?;
        let stored = Stored::read(store.as_ref()).await.map_err(AppError::Store)?;
        let differences = stored.differences(expected);
        let sample = store.read_view("product_search", 5).await.map_err(AppError::Store)?;
        let lag = lag(&store).await?;
        let mut lines = vec![sample.columns];
        lines.extend(sample.rows.into_iter().map(|row| row.into_iter().map(Option::unwrap_or_default).collect()));
        store.close().await;
        Ok(DemoReport {
            events: 0,
            rows: stored.products.rows.len() + stored.stock.rows.len(),
            dead_letters: stored.dead_letters.values().sum(),
            dead_letter_reasons: stored.dead_letters,
            lag,
            verified: differences.is_empty() && lag == 0,
            differences: differences.into_iter().take(10).collect(),
            applied_before_crash: 0,
            database: self.database.clone(),
            sample: lines,
            seconds: 0.0,
        })
    }
}

/// The demo's projection.
///
/// # Errors
/// Its file has a mistake, which a test rules out.
pub fn projection() -> Result<Arc<dyn Projection>, AppError> {
    let file = Path::new("examples/demo/product_catalogue.v1.yaml");
    let read_file = |path: &Path| std::fs::read_to_string(path);
    match spec::parse(file, PROJECTION, read_file) {
        Ok(projection) => Ok(Arc::new(projection)),
        Err(mistakes) => Err(AppError::Mistakes(mistakes)),
    }
}

async fn open(path: &Path, mode: OpenMode) -> Result<SharedStore, AppError> {
    Ok(Arc::new(SqliteStore::open(path, mode).await.map_err(AppError::Store)?))
}

fn limits() -> LimitSettings {
    // Small batches, so that the middle of the demo falls between two of them.
    LimitSettings {
        record: Limits::default(),
        batch_records: 500,
        memory: 16 * 1024 * 1024,
        queue: 4 * 1024 * 1024,
    }
}

fn kafka(bootstrap_servers: &str) -> KafkaSettings {
    KafkaSettings {
        bootstrap_servers: bootstrap_servers.to_owned(),
        group_prefix: "demo".to_owned(),
        properties: BTreeMap::new(),
        consumer_properties: [("session.timeout.ms", "6000"), ("heartbeat.interval.ms", "500")]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned().into()))
            .collect(),
        producer_properties: BTreeMap::new(),
    }
}

async fn applied(store: &SharedStore) -> Result<u64, AppError> {
    let rows = store.status(None).await.map_err(AppError::Store)?;
    Ok(rows.iter().map(|row| u64::try_from(row.position.get()).unwrap_or(0)).sum())
}

async fn lag(store: &SharedStore) -> Result<u64, AppError> {
    let rows = store.status(None).await.map_err(AppError::Store)?;
    Ok(rows.iter().map(|row| row.position.lag_to(row.readable_end.unwrap_or(row.boundary))).sum())
}

/// What the store holds at the end.
struct Stored {
    products: Rows,
    stock: Rows,
    dead_letters: BTreeMap<String, usize>,
}

impl Stored {
    async fn read(store: &dyn ReadStore) -> Result<Self, StoreError> {
        let filter = DeadLetterFilter { limit: 1000, ..DeadLetterFilter::default() };
        let mut dead_letters = BTreeMap::new();
        for stored in store.dead_letters(&filter).await? {
            *dead_letters.entry(stored.letter.fault.reason.as_str().to_owned()).or_default() += 1;
        }
        let products = store.read_view("products", u32::MAX).await?;
        let stock = store.read_view("stock", u32::MAX).await?;
        Ok(Self { products, stock, dead_letters })
    }

    fn differences(&self, expected: &Expected) -> Vec<String> {
        let products = expected.products.iter().map(|(id, product)| {
            let fields = [
                Some(product.name.clone()),
                product.category.clone(),
                Some(product.price_cents.to_string()),
                Some(product.listed_at.to_string()),
                Some(product.price_changes.to_string()),
            ];
            (vec![Some(id.clone())], fields.to_vec())
        });
        let stock = expected.stock.iter().map(|((sku, warehouse), quantity)| {
            (vec![Some(sku.clone()), Some(warehouse.clone())], vec![Some(quantity.to_string())])
        });
        let mut differences = compare("products", &self.products, 1, products.collect());
        differences.extend(compare("stock", &self.stock, 2, stock.collect()));
        let letters: BTreeMap<String, usize> =
            expected.dead_letters.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
        if letters != self.dead_letters {
            differences.push(format!("dead letters: expected {letters:?}, found {:?}", self.dead_letters));
        }
        differences
    }
}

type Cells = Vec<Option<String>>;

/// Compares rows by key, the first `keys` columns.
fn compare(table: &str, stored: &Rows, keys: usize, expected: BTreeMap<Cells, Cells>) -> Vec<String> {
    let found: BTreeMap<Cells, Cells> =
        stored.rows.iter().map(|row| (row[..keys].to_vec(), row[keys..].to_vec())).collect();
    let mut differences = Vec::new();
    for (key, row) in &expected {
        match found.get(key) {
            None => differences.push(format!("{table} {key:?}: missing")),
            Some(other) if other != row => differences.push(format!("{table} {key:?}: expected {row:?}, found {other:?}")),
            Some(_) => {}
        }
    }
    let extra = found.keys().filter(|key| !expected.contains_key(*key));
    differences.extend(extra.map(|key| format!("{table} {key:?}: not expected")));
    differences
}
