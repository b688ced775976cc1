//! `projector demo`: a whole pipeline in one process, checked against a model that shares nothing with it.
//!
//! An embedded broker gets the sample shop's events; the demo's projection applies them to an SQLite file. Half-way the
//! pipeline is dropped where it stands, as a crash would, and started again. At the end the tables are compared with the
//! rows that the shop's own history leads to.

pub mod broker;
pub mod events;
pub mod report;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::settings::{KafkaSettings, LimitSettings};
use crate::config::yaml::Mistake;
use crate::decode::registry::{MemoryRegistry, Schemas};
use crate::decode::{Limits, SchemaId};
use crate::pipeline::service::{Outside, PrepareError, Service, Ways};
use crate::projection::{Projection, spec};
use crate::source::SourceError;
use crate::source::kafka::KafkaCluster;
use crate::store::sqlite::{OpenMode, SqliteStore};
use crate::store::{DeadLetterFilter, ReadStore, Rows, SharedStore, StoreError, StoredDeadLetter};
use crate::telemetry::Health;
use broker::EmbeddedBroker;
use events::Expected;
use report::{DemoOptions, DemoReason, DemoReport, DemoWatcher};

const PARTITIONS: i32 = 3;
const PROJECTION: &str = include_str!("../../examples/demo/product_catalogue.v1.yaml");

/// Why the demo could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The folder or the threads.
    #[error("the demo cannot use this machine")]
    Io(#[from] std::io::Error),
    /// The embedded broker.
    #[error("the embedded broker does not work")]
    Broker(#[from] SourceError),
    /// The SQLite file.
    #[error("the demo's SQLite file does not work")]
    Store(#[from] StoreError),
    /// The pipeline.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The demo's own projection has mistakes, which a test rules out.
    #[error("the demo's projection has mistakes: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Mistakes(Vec<Mistake>),
    /// It was told to stop.
    #[error("stopped before the demo was done; run it again")]
    Stopped,
}

/// Runs the demo.
///
/// # Errors
/// Something did not work. A difference from the model is [`DemoReport::verified`].
pub async fn run(
    options: DemoOptions,
    watcher: Arc<dyn DemoWatcher>,
    stop: CancellationToken,
) -> Result<DemoReport, DemoError> {
    // The two lives of the pipeline have a runtime each, so that the first can be dropped; a runtime must not be dropped
    // inside another.
    let done = tokio::task::spawn_blocking(move || both_lives(&options, watcher.as_ref(), &stop)).await;
    done.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
}

fn both_lives(
    options: &DemoOptions,
    watcher: &dyn DemoWatcher,
    stop: &CancellationToken,
) -> Result<DemoReport, DemoError> {
    let begun = std::time::Instant::now();
    let folder = match &options.keep {
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            folder.clone()
        }
        None => std::env::temp_dir().join(format!("projector-demo-{}", uuid::Uuid::new_v4().simple())),
    };
    std::fs::create_dir_all(&folder)?;
    let result = in_folder(&folder, options, watcher, stop);
    if options.keep.is_none() {
        std::fs::remove_dir_all(&folder)?;
    }
    let mut report = result?;
    report.seconds = begun.elapsed().as_secs_f64();
    report.file = options.keep.as_ref().map(|_| folder.join(DATABASE));
    Ok(report)
}

fn in_folder(
    folder: &Path,
    options: &DemoOptions,
    watcher: &dyn DemoWatcher,
    stop: &CancellationToken,
) -> Result<DemoReport, DemoError> {
    let database = folder.join(DATABASE);
    // A kept file of an earlier run belongs to a broker that is gone.
    for name in [DATABASE.to_owned(), format!("{DATABASE}-wal"), format!("{DATABASE}-shm")] {
        match std::fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let (samples, expected) = events::history(usize::try_from(options.events).unwrap_or(usize::MAX));
    let total = samples.len() as u64;
    let broker = start_broker(&samples)?;
    watcher.step(&format!("{total} events are in an embedded broker"));
    let life = Life { broker: &broker, database, total, watcher, stop };

    let first = runtime()?;
    let half = first.block_on(life.until(total / 2))?;
    // No drain, no commit, no farewell: whatever the tasks are doing is dropped where it stands.
    first.shutdown_background();
    watcher.step(&format!(
        "{half} are applied: the pipeline is dropped without any clean-up, and started again"
    ));

    let second = runtime()?;
    second.block_on(async {
        life.until(total).await?;
        life.report(&expected).await
    })
}

const DATABASE: &str = "demo.sqlite";

fn runtime() -> Result<tokio::runtime::Runtime, DemoError> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn start_broker(samples: &[events::Sample]) -> Result<EmbeddedBroker, DemoError> {
    let topics: Vec<(&str, i32)> = events::TOPICS.iter().map(|topic| (*topic, PARTITIONS)).collect();
    let broker = EmbeddedBroker::start(&topics)?;
    broker.produce(
        samples.iter().map(|sample| (sample.topic, sample.key.as_bytes(), sample.value.as_deref())),
    )?;
    Ok(broker)
}

/// One life of the pipeline.
struct Life<'a> {
    broker: &'a EmbeddedBroker,
    database: PathBuf,
    total: u64,
    watcher: &'a dyn DemoWatcher,
    stop: &'a CancellationToken,
}

impl Life<'_> {
    /// Runs until `goal` records are applied, and returns how many are. The last life ends cleanly.
    async fn until(&self, goal: u64) -> Result<u64, DemoError> {
        let stop = CancellationToken::new();
        let store = open(&self.database, OpenMode::Run).await?;
        let service = Arc::new(self.service(store.clone(), &stop).await?);
        let running = tokio::spawn({
            let (service, stop) = (service.clone(), stop.clone());
            async move { service.run(stop).await }
        });
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        let applied = loop {
            tokio::select! {
                () = self.stop.cancelled() => return Err(DemoError::Stopped),
                _ = pause.tick() => {}
            }
            let applied = applied(&store).await?;
            self.watcher.progress(applied, self.total);
            if applied >= goal {
                break applied;
            }
        };
        if goal == self.total {
            while service.catch_up().await?.partitions_behind > 0 {
                pause.tick().await;
            }
            stop.cancel();
            drop(running.await);
        }
        Ok(applied)
    }

    async fn service(&self, store: SharedStore, stop: &CancellationToken) -> Result<Service, DemoError> {
        let limits = limits();
        let cluster = KafkaCluster::without_topic_ids(&kafka(self.broker.bootstrap_servers()), &limits)?;
        let registry = MemoryRegistry::default();
        for (id, schema) in events::SCHEMAS {
            registry.register(SchemaId(id), schema);
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
            max_waiting: 10_000,
            grace: Duration::from_secs(5),
        };
        Ok(Service::prepare(outside, &ways, vec![projection()?], stop).await?)
    }

    async fn report(&self, expected: &Expected) -> Result<DemoReport, DemoError> {
        let store = open(&self.database, OpenMode::Inspect).await?;
        let stored = Stored::read(store.as_ref()).await?;
        let differences = stored.differences(expected);
        let sample = store.read_view("product_search", 5).await?;
        let lag = lag(&store).await?;
        let mut lines = vec![sample.columns];
        lines.extend(
            sample.rows.into_iter().map(|row| row.into_iter().map(Option::unwrap_or_default).collect()),
        );
        store.close().await;
        Ok(DemoReport {
            events: self.total,
            rows: (stored.products.rows.len() + stored.stock.rows.len()) as u64,
            dead_letters: stored.dead_letters.len() as u64,
            lag,
            verified: differences.is_empty() && lag == 0,
            seconds: 0.0,
            sample: lines,
            reasons: stored.reasons(),
            difference: differences.into_iter().next(),
            file: None,
        })
    }
}

/// The demo's projection.
///
/// # Errors
/// Its file has a mistake, which a test rules out.
pub fn projection() -> Result<Arc<dyn Projection>, DemoError> {
    let file = Path::new("examples/demo/product_catalogue.v1.yaml");
    let read_file = |path: &Path| std::fs::read_to_string(path);
    match spec::parse(file, PROJECTION, read_file) {
        Ok(projection) => Ok(Arc::new(projection)),
        Err(mistakes) => Err(DemoError::Mistakes(mistakes)),
    }
}

/// Opens the file. The tasks of the first life may still be falling when the second begins: their lock is waited for.
async fn open(path: &Path, mode: OpenMode) -> Result<SharedStore, DemoError> {
    let begun = std::time::Instant::now();
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    loop {
        pause.tick().await;
        match SqliteStore::open(path, mode).await {
            Ok(store) => return Ok(Arc::new(store)),
            Err(StoreError::Refused { .. }) if begun.elapsed() < Duration::from_secs(10) => {}
            Err(error) => return Err(error.into()),
        }
    }
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

async fn applied(store: &SharedStore) -> Result<u64, DemoError> {
    let rows = store.status(None).await?;
    Ok(rows.iter().map(|row| u64::try_from(row.position.get()).unwrap_or(0)).sum())
}

async fn lag(store: &SharedStore) -> Result<u64, DemoError> {
    let rows = store.status(None).await?;
    Ok(rows.iter().map(|row| row.position.lag_to(row.readable_end.unwrap_or(row.boundary))).sum())
}

/// What the store holds at the end.
struct Stored {
    products: Rows,
    stock: Rows,
    dead_letters: Vec<StoredDeadLetter>,
}

impl Stored {
    async fn read(store: &dyn ReadStore) -> Result<Self, StoreError> {
        let filter = DeadLetterFilter { limit: 1000, ..DeadLetterFilter::default() };
        let dead_letters = store.dead_letters(&filter).await?;
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
        let mut differences = compare("products", &self.products, 1, &products.collect());
        differences.extend(compare("stock", &self.stock, 2, &stock.collect()));
        let found: BTreeMap<&str, usize> =
            self.reasons().iter().fold(BTreeMap::new(), |mut found, reason| {
                let known = expected.dead_letters.keys().find(|known| **known == reason.reason).copied();
                found.insert(known.unwrap_or("other"), usize::try_from(reason.count).unwrap_or(usize::MAX));
                found
            });
        if found != expected.dead_letters {
            differences.push(format!("dead letters: expected {:?}, found {found:?}", expected.dead_letters));
        }
        differences
    }

    fn reasons(&self) -> Vec<DemoReason> {
        let mut reasons: BTreeMap<&str, DemoReason> = BTreeMap::new();
        for StoredDeadLetter { letter, .. } in &self.dead_letters {
            let name = letter.fault.reason.as_str();
            let reason = reasons.entry(name).or_insert_with(|| DemoReason {
                reason: name.to_owned(),
                count: 0,
                example: letter.record.coordinates.to_string(),
                detail: letter.fault.detail.clone(),
            });
            reason.count += 1;
        }
        reasons.into_values().collect()
    }
}

type Cells = Vec<Option<String>>;

/// Compares rows by key, the first `keys` columns.
fn compare(table: &str, stored: &Rows, keys: usize, expected: &BTreeMap<Cells, Cells>) -> Vec<String> {
    let found: BTreeMap<Cells, Cells> =
        stored.rows.iter().map(|row| (row[..keys].to_vec(), row[keys..].to_vec())).collect();
    let mut differences = Vec::new();
    for (key, row) in expected {
        match found.get(key) {
            None => differences.push(format!("{table} {key:?}: missing")),
            Some(other) if other != row => {
                differences.push(format!("{table} {key:?}: expected {row:?}, found {other:?}"));
            }
            Some(_) => {}
        }
    }
    let extra = found.keys().filter(|key| !expected.contains_key(*key));
    differences.extend(extra.map(|key| format!("{table} {key:?}: not expected")));
    differences
}
