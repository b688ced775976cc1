//! Composition root: the one module that knows every part. The verbs of the command line call these functions.
//!
//! [`projections`] and [`agreement`] read and check the files of projections; [`services`] and [`sample`] are what `check --connect` looks at, [`outcome`] what `run` is asked and how it ends.

mod agreement;
mod outcome;
mod projections;
mod sample;
mod services;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::settings::Settings;
use crate::config::yaml::Mistake;
use crate::count::counted;
use crate::dead_letter::publisher::Publisher;
use crate::decode::registry::{HttpRegistry, Schemas};
use crate::http::{self, HttpError, Pages};
use crate::pipeline::publish::DeadLetterTopic;
use crate::pipeline::service::{CatchUp as Far, Outside, PrepareError, Service, Ways};
pub use crate::pipeline::tally::Totals;
use crate::projection::{Declaration, Projection};
use crate::source::kafka::{KafkaCluster, Librdkafka};
use crate::source::{Cluster, SourceError};
use crate::status::{CachedStatus, Catalogue};
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::{OpenMode, SqliteStore};
use crate::store::{SharedStore, StoreError, VersionKey};
use crate::telemetry::{Health, Metrics};

pub use crate::demo::report::{DemoOptions, DemoReason, DemoReport, DemoWatcher};
pub use outcome::{CatchUp, RunOptions, RunOutcome, RunWatcher, Until};
pub use projections::{CheckedProjection, Loaded, configured_projections, load_projection, load_projections};
pub use services::{ServiceFinding, check_services};

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
    #[error("{} in the files", counted(.0.len(), "mistake"))]
    Mistakes(Vec<Mistake>),
}

/// Reads `projector.yaml`: `path`, else `$PROJECTOR_CONFIG`, `./projector.yaml`, `/etc/projector/projector.yaml`.
///
/// # Errors
/// Every mistake in it.
pub fn load_settings(path: Option<&Path>) -> Result<Settings, Vec<Mistake>> {
    crate::config::load(path, &Librdkafka)
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
    if let Some(path) = settings.store.sqlite_path() {
        let mode = match purpose {
            Purpose::Run => OpenMode::Run,
            Purpose::Inspect => OpenMode::Inspect,
        };
        return Ok(Arc::new(SqliteStore::open(path, mode).await.map_err(failed)?));
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

/// Which SQL somebody runs who makes the tables beside the projector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DdlPart {
    /// What must be there before `run`: the projector's own tables and those of the projections, with the rights on them.
    Tables,
    /// What readers query: to be made when the versions have caught up, and never before.
    Views,
}

/// The SQL that makes what declarations need in the store of the settings.
///
/// # Errors
/// The store cannot be opened.
pub async fn ddl(
    settings: &Settings,
    declarations: &[Arc<Declaration>],
    part: DdlPart,
) -> Result<Vec<String>, AppError> {
    let store = open_store(settings, Purpose::Inspect).await?;
    let statements = match part {
        DdlPart::Tables => {
            let own = store.layout_ddl().into_iter();
            own.chain(declarations.iter().flat_map(|declaration| store.ddl(declaration))).collect()
        }
        DdlPart::Views => declarations.iter().flat_map(|declaration| store.views_ddl(declaration)).collect(),
    };
    store.close().await;
    Ok(statements)
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
    let chosen = projections::chosen_projections(&settings, &options.names).await?;
    let projections = chosen.iter().cloned().map(|projection| projection as Arc<dyn Projection>).collect();
    let outcome = run_projections(&settings, projections, options.until, watcher, stop).await;
    outcome.map_err(|error| projections::placed(error, &chosen))
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
        if far.waits_for_views() {
            return RunOutcome::NotLive(far.not_live);
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
