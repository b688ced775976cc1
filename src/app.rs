//! The composition root: the one file that knows every part.
//!
//! [`open_store`] and [`load_projections`] are what most verbs begin with. [`Service`] is projections at work, whoever runs
//! them: `projector run`, the demo, or a program that brings projections of its own written in Rust.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::settings::{LimitSettings, Settings, StoreSettings};
use crate::config::yaml::Mistake;
use crate::dead_letter::publisher::Publisher;
use crate::decode::Decoder;
use crate::decode::registry::{HttpRegistry, MemoryRegistry, Schemas};
use crate::pipeline::publish::{self, DeadLetterTopic};
use crate::pipeline::retry::{self, Backoff, Class};
use crate::pipeline::{Budget, Shared, VersionParts, supervisor};
use crate::position::NextOffset;
use crate::projection::{Declaration, Projection, Start, spec};
use crate::record::TopicPartition;
use crate::source::kafka::KafkaCluster;
use crate::source::{Cluster, SourceError, TopicDescription};
use crate::store::sqlite::{OpenMode, SqliteStore};
use crate::store::postgres::PostgresStore;
use crate::store::{
    InstanceId, LogIdentity, PartitionStart, Registered, Registration, SharedStore, StoreError, VersionState,
};
use crate::telemetry::Health;

/// Why a process could not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// Mistakes in files; all of them.
    #[error("{}", list(.0))]
    Mistakes(Vec<Mistake>),
    /// The store refuses, or holds something else than what is declared.
    #[error("the read store: {0}")]
    Store(StoreError),
    /// Kafka refuses, or a topic is missing.
    #[error(transparent)]
    Kafka(SourceError),
    /// Anything else that the user has to change.
    #[error("{0}")]
    Configuration(String),
    /// A partition is quarantined, and the run was to end when caught up.
    #[error("{partition} of {version} is quarantined ({reason}): {detail}")]
    Quarantined {
        /// The version.
        version: String,
        /// The partition.
        partition: TopicPartition,
        /// The stable word.
        reason: String,
        /// The numbers, and the command that decides.
        detail: String,
    },
    /// It was told to stop before it was done.
    #[error("stopped before it was done")]
    Stopped,
}

fn list(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(Mistake::to_string).collect::<Vec<_>>().join("\n")
}

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To apply events: there is only one such process for an SQLite file.
    Run,
    /// To look, or to leave a request.
    Inspect,
}

/// Opens the configured store. Does not wait for a server that is not there.
pub async fn open_store(settings: &StoreSettings, purpose: Purpose) -> Result<SharedStore, StoreError> {
    if let Some(path) = settings.url.expose_secret().strip_prefix("sqlite:") {
        let mode = match purpose {
            Purpose::Run => OpenMode::Run,
            Purpose::Inspect => OpenMode::Inspect,
        };
        let path = path.strip_prefix("//").unwrap_or(path);
        return Ok(Arc::new(SqliteStore::open(Path::new(path), mode).await?));
    }
    Ok(Arc::new(PostgresStore::connect(settings).await?))
}

/// Loads the configured projections, or those of them that are named.
///
/// # Errors
/// All mistakes of all files; a name that no file has.
pub fn load_projections(settings: &Settings, names: &[String]) -> Result<Vec<Arc<dyn Projection>>, AppError> {
    let mut projections: Vec<Arc<dyn Projection>> = Vec::new();
    let mut mistakes = Vec::new();
    for file in &settings.projections {
        match spec::load(file) {
            Ok(projection) => projections.push(Arc::new(projection)),
            Err(found) => mistakes.extend(found),
        }
    }
    if !mistakes.is_empty() {
        return Err(AppError::Mistakes(mistakes));
    }
    choose(projections, names)
}

/// Keeps the projections that are named; all of them where none is.
pub fn choose(projections: Vec<Arc<dyn Projection>>, names: &[String]) -> Result<Vec<Arc<dyn Projection>>, AppError> {
    let known: BTreeSet<&str> = projections.iter().map(|p| p.declaration().name.as_str()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name.as_str())) {
        let all: Vec<&str> = known.into_iter().collect();
        return Err(AppError::Configuration(format!(
            "no projection is called {unknown}; the configuration has {}",
            all.join(", ")
        )));
    }
    if known.len() < projections.len() {
        let message = "two projection files have the same projection name; keep one of them in `projections`";
        return Err(AppError::Configuration(message.to_owned()));
    }
    if projections.is_empty() {
        let message = "no projection is configured; list the files under `projections` in projector.yaml";
        return Err(AppError::Configuration(message.to_owned()));
    }
    let is_chosen = |p: &Arc<dyn Projection>| names.is_empty() || names.contains(&p.declaration().name);
    Ok(projections.into_iter().filter(is_chosen).collect())
}

/// What a service needs from outside.
pub struct Outside {
    /// The store.
    pub store: SharedStore,
    /// The cluster.
    pub cluster: Arc<dyn Cluster>,
    /// Schemas of the registry.
    pub schemas: Schemas,
    /// Where dead letters are sent, for each projection that publishes them.
    pub dead_letter_topics: BTreeMap<String, Arc<dyn DeadLetterTopic>>,
    /// The readiness that is told to the platform.
    pub health: Health,
}

/// How a service works.
#[derive(Debug, Clone)]
pub struct Ways {
    /// Consumer groups are `<group_prefix>.<projection>.v<version>`.
    pub group_prefix: String,
    /// Transactions at a time.
    pub writers: usize,
    /// Bounds.
    pub limits: LimitSettings,
    /// For how long an unknown schema id is asked for.
    pub unknown_schema_wait: Duration,
    /// How long a shutdown may take.
    pub grace: Duration,
}

impl Ways {
    /// As configured.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let wait = settings.schema_registry.as_ref().map(|registry| registry.unknown_id_wait);
        Self {
            group_prefix: settings.kafka.group_prefix.clone(),
            writers: settings.store.writers,
            limits: settings.limits.clone(),
            unknown_schema_wait: wait.unwrap_or(Duration::from_secs(10)),
            grace: settings.shutdown_grace,
        }
    }
}

/// Connects everything that `projector.yaml` names.
pub async fn connect(
    settings: &Settings,
    projections: &[Arc<dyn Projection>],
    health: Health,
) -> Result<Outside, AppError> {
    let store = open_store(&settings.store, Purpose::Run).await.map_err(AppError::Store)?;
    let cluster = KafkaCluster::new(&settings.kafka, &settings.limits).map_err(AppError::Kafka)?;
    let schemas = match &settings.schema_registry {
        Some(registry) => {
            let registry = HttpRegistry::new(registry).map_err(|error| AppError::Configuration(error.to_string()))?;
            Schemas::new(Arc::new(registry))
        }
        None => Schemas::new(Arc::new(MemoryRegistry::default())),
    };
    let publisher = Arc::new(Publisher::connect(&settings.kafka).map_err(AppError::Kafka)?);
    let mut dead_letter_topics: BTreeMap<String, Arc<dyn DeadLetterTopic>> = BTreeMap::new();
    for projection in projections {
        let name = &projection.declaration().name;
        if let Some(topic) = settings.dead_letter.topic_of(&settings.kafka.group_prefix, name) {
            let styles = settings.dead_letter.headers.clone();
            dead_letter_topics.insert(name.clone(), Arc::new(publisher.clone().topic(topic, styles)));
        }
    }
    Ok(Outside { store, cluster: Arc::new(cluster), schemas, dead_letter_topics, health })
}

/// Projections that are registered and ready to run.
pub struct Service {
    shared: Arc<Shared>,
    cluster: Arc<dyn Cluster>,
    versions: Vec<Arc<VersionParts>>,
    dead_letter_topics: BTreeMap<String, Arc<dyn DeadLetterTopic>>,
    /// Readable ends when the service was prepared.
    ends: BTreeMap<(String, TopicPartition), NextOffset>,
}

impl Service {
    /// Everything before joining: waits for the store and the brokers, lays out the tables, and registers the versions.
    ///
    /// # Errors
    /// What is wrong before joining ends the process: refused credentials, missing topics, a changed mapping, tables that
    /// differ. Outages are waited for until `stop` is cancelled.
    pub async fn prepare(
        outside: Outside,
        ways: &Ways,
        projections: Vec<Arc<dyn Projection>>,
        stop: &CancellationToken,
    ) -> Result<Self, AppError> {
        let store = outside.store;
        waiting(stop, "the read store", || store.lay_out()).await?;
        outside.health.laid_out();
        let cluster_id = waiting(stop, "kafka", || outside.cluster.cluster_id()).await?;
        let mut versions = Vec::new();
        let mut ends = BTreeMap::new();
        for projection in projections {
            let declaration = Arc::new(projection.declaration().clone());
            let group = format!("{}.{}.v{}", ways.group_prefix, declaration.name, declaration.version);
            let topics: Vec<String> = declaration.sources.iter().map(|source| source.topic.clone()).collect();
            let described = waiting(stop, "kafka", || outside.cluster.describe(&topics)).await?;
            let partitions = starts(&declaration, &described);
            for start in &partitions {
                ends.insert((declaration.name.clone(), start.partition.clone()), start.boundary);
            }
            let log = LogIdentity { cluster_id: cluster_id.clone(), consumer_group: group.clone() };
            let registration = Registration { declaration: declaration.clone(), log, partitions };
            if waiting(stop, "the read store", || store.register(&registration)).await? == Registered::New {
                tracing::info!(version = declaration.label(), group, "registered");
            }
            let mut decoders = Vec::with_capacity(declaration.sources.len());
            for source in &declaration.sources {
                let decoder = Decoder::new(source, outside.schemas.clone(), ways.limits.record)
                    .map_err(|error| AppError::Configuration(error.to_string()))?;
                decoders.push(decoder);
            }
            versions.push(Arc::new(VersionParts::new(projection, group, outside.schemas.clone(), decoders)));
        }
        check_dead_letter_topics(&outside.cluster, &outside.dead_letter_topics, stop).await?;
        let shared = Shared {
            store,
            instance: InstanceId(uuid::Uuid::new_v4().to_string().into()),
            host: host_name(),
            writers: Arc::new(Semaphore::new(ways.writers)),
            lanes: ways.writers,
            budget: Budget::new(ways.limits.memory, versions.len()),
            batch_records: ways.limits.batch_records,
            partition_bytes: (ways.limits.memory / 16).max(256 * 1024),
            unknown_schema_wait: ways.unknown_schema_wait,
            grace: ways.grace,
            health: outside.health,
        };
        let dead_letter_topics = outside.dead_letter_topics;
        Ok(Self { shared: Arc::new(shared), cluster: outside.cluster, versions, dead_letter_topics, ends })
    }

    /// The declarations of the versions that are served.
    pub fn declarations(&self) -> impl Iterator<Item = &Declaration> {
        self.versions.iter().map(|parts| parts.declaration.as_ref())
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> SharedStore {
        self.shared.store.clone()
    }

    /// Joins the groups and applies events until `stop` is cancelled, or every version has been retired.
    pub async fn run(&self, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        for parts in &self.versions {
            let (shared, cluster) = (self.shared.clone(), self.cluster.clone());
            tasks.spawn(supervisor::keep_running(shared, parts.clone(), cluster, stop.clone()));
        }
        let stop_publishing = CancellationToken::new();
        let mut publishers = JoinSet::new();
        for parts in &self.versions {
            if let Some(topic) = self.dead_letter_topics.get(&parts.declaration.name) {
                let store = self.shared.store.clone();
                publishers.spawn(publish::run(store, parts.clone(), topic.clone(), stop_publishing.clone()));
            }
        }
        while tasks.join_next().await.is_some() {}
        stop_publishing.cancel();
        while publishers.join_next().await.is_some() {}
        if let Err(error) = self.shared.store.sign_off(&self.shared.instance).await {
            tracing::info!(%error, "signing off failed; the heartbeat runs out by itself");
        }
        self.shared.store.close().await;
    }

    /// Waits until the store's positions of all partitions, whoever owns them, have reached the readable ends seen when the
    /// service was prepared, and first versions are live.
    ///
    /// # Errors
    /// [`AppError::Quarantined`] where a partition that is not there yet is quarantined.
    pub async fn caught_up(&self) -> Result<(), AppError> {
        let mut pause = tokio::time::interval(Duration::from_millis(100));
        loop {
            pause.tick().await;
            let Ok(rows) = self.shared.store.status(None).await else { continue };
            let mut is_there = true;
            for ((projection, partition), end) in &self.ends {
                let row = rows.iter().find(|row| {
                    row.version.projection.as_ref() == projection.as_str()
                        && row.partition == *partition
                        && row.version_state != VersionState::Retired
                });
                let Some(row) = row else {
                    is_there = false;
                    continue;
                };
                if row.position >= *end && row.version_state == VersionState::Live {
                    continue;
                }
                is_there = false;
                if let Some(why) = &row.quarantine
                    && row.position < *end
                {
                    return Err(AppError::Quarantined {
                        version: row.version.to_string(),
                        partition: partition.clone(),
                        reason: why.reason.clone(),
                        detail: why.detail.clone(),
                    });
                }
            }
            if is_there {
                return Ok(());
            }
        }
    }
}

/// Start and boundary of every partition of a declaration's sources.
fn starts(declaration: &Declaration, described: &BTreeMap<String, TopicDescription>) -> Vec<PartitionStart> {
    let mut starts = Vec::new();
    for source in &declaration.sources {
        let Some(topic) = described.get(&source.topic) else { continue };
        for (number, (first, end)) in &topic.partitions {
            starts.push(PartitionStart {
                partition: TopicPartition::new(source.topic.as_str(), *number),
                topic_id: topic.topic_id.clone(),
                start: match source.start {
                    Start::Earliest => *first,
                    Start::Latest => *end,
                },
                boundary: *end,
            });
        }
    }
    starts
}

/// A dead-letter topic that does not exist is a mistake to be found now, not with the first dead letter.
async fn check_dead_letter_topics(
    cluster: &Arc<dyn Cluster>,
    topics: &BTreeMap<String, Arc<dyn DeadLetterTopic>>,
    stop: &CancellationToken,
) -> Result<(), AppError> {
    let names: BTreeSet<String> = topics.values().map(|topic| topic.name().to_owned()).collect();
    for name in names {
        match waiting(stop, "kafka", || cluster.describe(std::slice::from_ref(&name))).await {
            Err(AppError::Kafka(SourceError::MissingTopic { topic })) => {
                return Err(AppError::Configuration(format!(
                    "the dead-letter topic {topic} does not exist; create it, or set `dead_letter: {{ topic: none }}` to \
                     keep dead letters in their table only"
                )));
            }
            other => drop(other?),
        }
    }
    Ok(())
}

/// An error of an outside service: to be waited for, or not.
trait Passing: std::fmt::Display {
    fn passes(&self) -> bool;
    fn into_app(self) -> AppError;
}

impl Passing for StoreError {
    fn passes(&self) -> bool {
        matches!(retry::classify(self), Class::Infrastructure(_))
    }

    fn into_app(self) -> AppError {
        AppError::Store(self)
    }
}

impl Passing for SourceError {
    fn passes(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::NotAMember { .. })
    }

    fn into_app(self) -> AppError {
        AppError::Kafka(self)
    }
}

/// Tries again while the fault is an outage, until `stop` is cancelled.
async fn waiting<T, E, F, Fut>(stop: &CancellationToken, what: &str, mut attempt: F) -> Result<T, AppError>
where
    E: Passing,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut backoff = Backoff::up_to(Duration::from_secs(10));
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if error.passes() => {
                if backoff.attempts() % 10 == 0 {
                    tracing::warn!(%error, "waiting for {what}");
                }
                tokio::select! {
                    () = stop.cancelled() => return Err(AppError::Stopped),
                    () = tokio::time::sleep(backoff.next(retry::jitter())) => {}
                }
            }
            Err(error) => return Err(error.into_app()),
        }
    }
}

/// The host's name, for people who look at `projector_instances`.
fn host_name() -> String {
    std::env::var("HOSTNAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned())
}
