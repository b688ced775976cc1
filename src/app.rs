//! Composition root: the one file that knows every part. The verbs of the command line call these functions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::config::settings::Settings;
use crate::config::yaml::Mistake;
use crate::dead_letter::publisher::Publisher;
use crate::decode::SchemaId;
use crate::decode::registry::{HttpRegistry, RegistryError, Schemas};
use crate::http::{self, HttpError, Pages};
use crate::pipeline::publish::DeadLetterTopic;
use crate::pipeline::service::{CatchUp as Far, Outside, PrepareError, Service, Ways};
pub use crate::pipeline::tally::Totals;
use crate::projection::{Declaration, Projection, spec};
use crate::record::TopicPartition;
use crate::source::kafka::KafkaCluster;
use crate::source::{Cluster, SourceError};
use crate::status::{CachedStatus, Catalogue};
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::{OpenMode, SqliteStore};
use crate::store::{Quarantine, SharedStore, StoreError, VersionKey};
use crate::telemetry::{Health, Metrics};

/// A failure of one of the functions here. Which exit code it gets is decided in `cli::exit`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// The configuration cannot work.
    #[error("{problem}; {fix}")]
    Configuration {
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: String,
    },
    /// What is asked is refused because of what the store or the cluster holds.
    #[error("{problem}; {fix}")]
    Refused {
        /// Why.
        problem: String,
        /// What to do about it.
        fix: String,
    },
    /// The store did not do it.
    #[error("cannot {action}")]
    Store {
        /// What was being done.
        action: &'static str,
        /// Why not.
        #[source]
        source: StoreError,
    },
    /// Kafka did not do it.
    #[error("cannot {action}")]
    Kafka {
        /// What was being done.
        action: &'static str,
        /// Why not.
        #[source]
        source: SourceError,
    },
    /// HTTP cannot be served.
    #[error("cannot serve HTTP")]
    Http(#[source] HttpError),
    /// Preparing a run failed before joining.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The demo could not do its work.
    #[error(transparent)]
    Demo(#[from] crate::demo::DemoError),
    /// Files with mistakes; all of them.
    #[error("{} mistakes in the files", .0.len())]
    Mistakes(Vec<Mistake>),
}

/// Reads `projector.yaml`: `path`, else `$PROJECTOR_CONFIG`, `./projector.yaml`, `/etc/projector/projector.yaml`.
///
/// # Errors
/// Every mistake in it.
pub fn load_settings(path: Option<&Path>) -> Result<Settings, Vec<Mistake>> {
    crate::config::load(path)
}

/// A projection file that has been read.
#[derive(Debug, Clone)]
pub struct CheckedProjection {
    /// Its declaration.
    pub declaration: Arc<Declaration>,
    /// What is allowed and likely not meant.
    pub warnings: Vec<Mistake>,
}

/// Reads a projection file.
///
/// # Errors
/// Every mistake in it.
pub fn load_projection(path: &Path) -> Result<CheckedProjection, Vec<Mistake>> {
    let projection = spec::load(path)?;
    let warnings =
        projection.warnings().iter().map(|warning| Mistake::new(&warning.place, &*warning.message)).collect();
    Ok(CheckedProjection { declaration: Arc::new(projection.declaration().clone()), warnings })
}

/// The projections of the settings, or those of them that are named.
fn chosen_projections(settings: &Settings, names: &[String]) -> Result<Vec<Arc<dyn Projection>>, AppError> {
    let mut loaded: Vec<Arc<dyn Projection>> = Vec::new();
    let mut mistakes = Vec::new();
    for file in &settings.projections {
        match spec::load(file) {
            Ok(projection) => loaded.push(Arc::new(projection)),
            Err(found) => mistakes.extend(found),
        }
    }
    if !mistakes.is_empty() {
        return Err(AppError::Mistakes(mistakes));
    }
    let known: BTreeSet<&str> =
        loaded.iter().map(|projection| projection.declaration().name.as_str()).collect();
    let all = known.iter().copied().collect::<Vec<_>>().join(", ");
    let refusal = |problem: String, fix: &str| Err(AppError::Configuration { problem, fix: fix.to_owned() });
    if loaded.is_empty() {
        return refusal(
            "no projection is configured".to_owned(),
            "list the files under `projections` in projector.yaml",
        );
    }
    if known.len() < loaded.len() {
        return refusal(
            "two projection files have the same projection name".to_owned(),
            "keep one of them under `projections`; versions beside each other are not in this release",
        );
    }
    if let Some(unknown) = names.iter().find(|name| !known.contains(name.as_str())) {
        return refusal(
            format!("no projection is called {unknown}"),
            &format!("the configuration has {all}"),
        );
    }
    loaded.retain(|projection| names.is_empty() || names.contains(&projection.declaration().name));
    Ok(loaded)
}

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To apply; of a SQLite file only one process may.
    Run,
    /// To look, or to leave a request.
    Inspect,
}

/// Opens the store of the settings.
///
/// # Errors
/// It cannot be opened, or (SQLite, [`Purpose::Run`]) another process has it.
pub async fn open_store(settings: &Settings, purpose: Purpose) -> Result<SharedStore, AppError> {
    let failed = |source| AppError::Store { action: "open the read store", source };
    if let Some(path) = settings.store.url.expose_secret().strip_prefix("sqlite:") {
        let mode = match purpose {
            Purpose::Run => OpenMode::Run,
            Purpose::Inspect => OpenMode::Inspect,
        };
        let path = path.strip_prefix("//").unwrap_or(path);
        return Ok(Arc::new(SqliteStore::open(Path::new(path), mode).await.map_err(failed)?));
    }
    Ok(Arc::new(PostgresStore::connect(&settings.store).map_err(failed)?))
}

fn open_cluster(settings: &Settings) -> Result<Arc<dyn Cluster>, AppError> {
    let cluster = KafkaCluster::new(&settings.kafka, &settings.limits)
        .map_err(|source| AppError::Kafka { action: "make a kafka client", source })?;
    Ok(Arc::new(cluster))
}

fn open_registry(settings: &Settings) -> Result<Schemas, AppError> {
    let Some(registry) = &settings.schema_registry else {
        return Ok(Schemas::none());
    };
    let registry = HttpRegistry::new(registry).map_err(|error| AppError::Configuration {
        problem: format!("the schema registry cannot be used: {error}"),
        fix: "see `schema_registry` in projector.yaml".to_owned(),
    })?;
    Ok(Schemas::new(Arc::new(registry)))
}

/// The SQL that registering a declaration would run in the store of the settings.
///
/// # Errors
/// The store cannot be opened.
pub async fn ddl(settings: &Settings, declaration: &Declaration) -> Result<Vec<String>, AppError> {
    let store = open_store(settings, Purpose::Inspect).await?;
    let statements = store.ddl(declaration);
    store.close().await;
    Ok(statements)
}

/// Something that `check --connect` has looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceFinding {
    /// What: `store`, `kafka`, `schema_registry`, `topic shop.products`.
    pub what: String,
    /// Whether it is as needed.
    pub ok: bool,
    /// What was seen, or what is wrong and what to do.
    pub detail: String,
}

/// Looks at the services that the settings name, without changing anything.
pub async fn check_services(settings: &Settings, declarations: &[Arc<Declaration>]) -> Vec<ServiceFinding> {
    let finding = |what: &str, result: Result<String, String>| ServiceFinding {
        what: what.to_owned(),
        ok: result.is_ok(),
        detail: result.unwrap_or_else(|wrong| wrong),
    };
    let mut findings = Vec::new();
    let store = match open_store(settings, Purpose::Inspect).await {
        Ok(store) => {
            let answer = store.versions().await;
            store.close().await;
            match answer {
                Ok(versions) => Ok(format!("{} versions are registered", versions.len())),
                Err(error) => Err(error.to_string()),
            }
        }
        Err(error) => Err(chain(&error)),
    };
    findings.push(finding("store", store));
    match open_cluster(settings) {
        Ok(cluster) => {
            let id = cluster.cluster_id().await;
            findings.push(finding(
                "kafka",
                id.map(|id| format!("cluster {id}")).map_err(|error| error.to_string()),
            ));
            let mut topics: BTreeSet<String> = BTreeSet::new();
            for declaration in declarations {
                topics.extend(declaration.sources.iter().map(|source| source.topic.clone()));
                topics.extend(settings.dead_letter.topic_of(&settings.kafka.group_prefix, &declaration.name));
            }
            for topic in topics {
                let described = cluster.describe(std::slice::from_ref(&topic)).await;
                let result = described
                    .map(|about| {
                        format!("{} partitions", about.values().map(|t| t.partitions.len()).sum::<usize>())
                    })
                    .map_err(|error| error.to_string());
                findings.push(finding(&format!("topic {topic}"), result));
            }
        }
        Err(error) => findings.push(finding("kafka", Err(chain(&error)))),
    }
    if settings.schema_registry.is_some() {
        let result = match open_registry(settings) {
            Ok(schemas) => ask_registry(&schemas).await,
            Err(error) => Err(chain(&error)),
        };
        findings.push(finding("schema_registry", result));
    }
    findings
}

/// Asks for an id that no registry gives: any answer to that shows that it can be asked.
async fn ask_registry(schemas: &Schemas) -> Result<String, String> {
    match schemas.fetch(SchemaId(0x7fff_ffff)).await {
        Ok(()) | Err(RegistryError::Unknown { .. }) => Ok("answers".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// What `run` was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOptions {
    /// Projections to serve; all of the settings where empty.
    pub names: Vec<String>,
    /// When to end.
    pub until: Until,
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When it is told to.
    Stopped,
    /// When the store's positions have reached the readable ends seen at start, and a first version is live.
    CaughtUp,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunOutcome {
    /// It was told to stop.
    Stopped,
    /// Everything up to the ends seen at start is applied.
    CaughtUp,
    /// These partitions are quarantined, so the ends cannot be reached.
    Quarantined(Vec<(VersionKey, TopicPartition, Quarantine)>),
}

/// How far a run with [`Until::CaughtUp`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CatchUp {
    /// Offsets between the positions at start and the ends seen then, all partitions together.
    pub total_records: u64,
    /// How many of them are not applied yet.
    pub remaining_records: u64,
    /// Partitions that have not reached their end.
    pub partitions_behind: usize,
    /// All partitions.
    pub partitions: usize,
}

/// Who is told about the progress of a run.
pub trait RunWatcher: Send + Sync {
    /// Everything is checked and the groups are being joined. `listen` is where HTTP is served.
    fn started(&self, versions: &[VersionKey], listen: Option<SocketAddr>);
    /// About once a second, with [`Until::CaughtUp`].
    fn progress(&self, progress: CatchUp);
    /// At the end, with what this process has done.
    fn ended(&self, totals: Totals);
}

/// Runs until told to stop, or until caught up.
///
/// # Errors
/// What is wrong before joining ([`AppError::Configuration`] and others), or the process cannot go on.
pub async fn run(
    settings: Settings,
    options: RunOptions,
    watcher: Arc<dyn RunWatcher>,
    stop: CancellationToken,
) -> Result<RunOutcome, AppError> {
    let projections = chosen_projections(&settings, &options.names)?;
    run_projections(&settings, projections, options.until, watcher, stop).await
}

/// Runs projections, however they were made: what a program with projections written in Rust calls.
///
/// # Errors
/// As [`run`].
pub async fn run_projections(
    settings: &Settings,
    projections: Vec<Arc<dyn Projection>>,
    until: Until,
    watcher: Arc<dyn RunWatcher>,
    stop: CancellationToken,
) -> Result<RunOutcome, AppError> {
    let health = Health::new();
    health.configured();
    let metrics = Metrics::install().map_err(|error| AppError::Configuration {
        problem: chain(&error),
        fix: "run one service in a process".to_owned(),
    })?;
    let catalogue = Catalogue::of(projections.iter().map(|projection| projection.declaration()));
    let store = open_store(settings, Purpose::Run).await?;
    let stop_http = CancellationToken::new();
    let (listen, serving) = match settings.http.listen {
        None => (None, None),
        Some(address) => {
            let listener = http::bind(address).await.map_err(AppError::Http)?;
            let listen = listener.local_addr().ok();
            let status = Arc::new(CachedStatus::new(store.clone()));
            let pages = Pages {
                health: health.clone(),
                metrics: metrics.clone(),
                status,
                catalogue: Arc::new(catalogue),
            };
            (listen, Some(tokio::spawn(http::serve(listener, pages, stop_http.clone()))))
        }
    };
    let outside = outside(settings, store, &projections, health)?;
    let result = serve(settings, outside, projections, until, watcher.as_ref(), listen, stop).await;
    stop_http.cancel();
    if let Some(serving) = serving {
        drop(tokio::time::timeout(Duration::from_secs(1), serving).await);
    }
    result
}

fn outside(
    settings: &Settings,
    store: SharedStore,
    projections: &[Arc<dyn Projection>],
    health: Health,
) -> Result<Outside, AppError> {
    let publisher = Publisher::connect(&settings.kafka)
        .map_err(|source| AppError::Kafka { action: "make the dead-letter producer", source })?;
    let publisher = Arc::new(publisher);
    let mut dead_letter_topics: BTreeMap<String, Arc<dyn DeadLetterTopic>> = BTreeMap::new();
    for projection in projections {
        let name = &projection.declaration().name;
        if let Some(topic) = settings.dead_letter.topic_of(&settings.kafka.group_prefix, name) {
            let styles = settings.dead_letter.headers.clone();
            let topic = PublishedTopic { publisher: publisher.clone(), topic, styles };
            dead_letter_topics.insert(name.clone(), Arc::new(topic));
        }
    }
    let (cluster, schemas) = (open_cluster(settings)?, open_registry(settings)?);
    Ok(Outside { store, cluster, schemas, dead_letter_topics, health })
}

async fn serve(
    settings: &Settings,
    outside: Outside,
    projections: Vec<Arc<dyn Projection>>,
    until: Until,
    watcher: &dyn RunWatcher,
    listen: Option<SocketAddr>,
    stop: CancellationToken,
) -> Result<RunOutcome, AppError> {
    let wait = settings.schema_registry.as_ref().map(|registry| registry.unknown_id_wait);
    let ways = Ways {
        group_prefix: settings.kafka.group_prefix.clone(),
        writers: settings.store.writers,
        limits: settings.limits.clone(),
        unknown_schema_wait: wait.unwrap_or(Duration::from_secs(10)),
        max_waiting: settings.dead_letter.max_waiting,
        grace: settings.shutdown_grace,
    };
    let service = match Service::prepare(outside, &ways, projections, &stop).await {
        Ok(service) => Arc::new(service),
        Err(PrepareError::Stopped(_)) => return Ok(RunOutcome::Stopped),
        Err(error) => return Err(error.into()),
    };
    let versions: Vec<VersionKey> = service.versions().cloned().collect();
    watcher.started(&versions, listen);
    let ending = stop.child_token();
    let running = tokio::spawn({
        let (service, ending) = (service.clone(), ending.clone());
        async move { service.run(ending).await }
    });
    let outcome = match until {
        Until::Stopped => RunOutcome::Stopped,
        Until::CaughtUp => catch_up(&service, watcher, &ending).await,
    };
    if until == Until::CaughtUp {
        ending.cancel();
    }
    // A panic in there has been logged; the process ends all the same.
    drop(running.await);
    watcher.ended(service.totals());
    Ok(outcome)
}

/// Waits until the service has caught up, is stopped, or is stuck at a quarantine with everything else done.
async fn catch_up(service: &Service, watcher: &dyn RunWatcher, stop: &CancellationToken) -> RunOutcome {
    let mut pause = tokio::time::interval(Duration::from_millis(100));
    let mut told = tokio::time::Instant::now();
    let mut total = 0;
    loop {
        tokio::select! {
            () = stop.cancelled() => return RunOutcome::Stopped,
            _ = pause.tick() => {}
        }
        let far = match service.catch_up().await {
            Ok(far) => far,
            Err(error) => {
                tracing::debug!(%error, "positions cannot be read; trying again");
                continue;
            }
        };
        total = total.max(far.remaining_records);
        let is_done = far.partitions_behind == 0;
        if is_done || told.elapsed() >= Duration::from_secs(1) {
            told = tokio::time::Instant::now();
            watcher.progress(progress(&far, total));
        }
        if is_done {
            return RunOutcome::CaughtUp;
        }
        if far.is_stuck() {
            return RunOutcome::Quarantined(far.quarantined);
        }
    }
}

fn progress(far: &Far, total_records: u64) -> CatchUp {
    CatchUp {
        total_records,
        remaining_records: far.remaining_records,
        partitions_behind: far.partitions_behind,
        partitions: far.partitions,
    }
}

/// One projection's dead-letter topic.
struct PublishedTopic {
    publisher: Arc<Publisher>,
    topic: String,
    styles: Vec<crate::config::settings::HeaderStyle>,
}

#[async_trait::async_trait]
impl DeadLetterTopic for PublishedTopic {
    fn name(&self) -> &str {
        &self.topic
    }

    async fn publish(
        &self,
        letter: &crate::dead_letter::DeadLetter,
    ) -> Result<(), crate::dead_letter::publisher::PublishError> {
        self.publisher.publish(&self.topic, letter, &self.styles).await
    }
}

/// What `demo` was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoOptions {
    /// The folder in which the SQLite file stays; a temporary one that is removed where absent.
    pub keep: Option<PathBuf>,
    /// How many events.
    pub events: u64,
}

/// What the demo did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DemoReport {
    /// Records produced.
    pub events: u64,
    /// Rows in all tables.
    pub rows: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Records that are not applied.
    pub lag: u64,
    /// Whether the rows equal those of the independent model.
    pub verified: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Some rows of the view, as text; the first line names the columns.
    pub sample: Vec<Vec<String>>,
    /// Dead letters by reason, with one of them as an example.
    pub reasons: Vec<DemoReason>,
    /// The first difference from the model, if there is one.
    pub difference: Option<String>,
    /// The SQLite file, if it was kept.
    pub file: Option<PathBuf>,
}

/// Dead letters of one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DemoReason {
    /// The reason.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// Where the first of them stands: `topic:partition:offset`.
    pub example: String,
    /// What it says; no values.
    pub detail: String,
}

/// Who is told about the progress of the demo.
pub trait DemoWatcher: Send + Sync {
    /// `applied` of `total` records are applied.
    fn progress(&self, applied: u64, total: u64);
    /// Something that a person should know: "stopped half-way without any clean-up".
    fn step(&self, what: &str);
}

/// Runs the demo.
///
/// # Errors
/// Something did not work. A difference from the model is not an error but [`DemoReport::verified`].
pub async fn demo(
    options: DemoOptions,
    watcher: Arc<dyn DemoWatcher>,
    stop: CancellationToken,
) -> Result<DemoReport, AppError> {
    Ok(crate::demo::run(options, watcher, stop).await?)
}
