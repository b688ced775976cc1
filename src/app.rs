//! Composition root: the one file that knows every part. The verbs of the command line call these functions.

#![allow(clippy::unused_async, reason = "functions that are not wired yet wait for nothing")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::config::settings::Settings;
use crate::config::yaml::{Mistake, Place};
use crate::http::HttpError;
use crate::projection::Declaration;
use crate::record::TopicPartition;
use crate::source::SourceError;
use crate::store::{Quarantine, SharedStore, StoreError, VersionKey};

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
    /// A part of the program that is not there yet.
    #[error("{0} is not wired yet")]
    NotWired(&'static str),
}

/// Reads `projector.yaml`: `path`, else `$PROJECTOR_CONFIG`, `./projector.yaml`, `/etc/projector/projector.yaml`.
///
/// # Errors
/// Every mistake in it.
pub fn load_settings(path: Option<&Path>) -> Result<Settings, Vec<Mistake>> {
    Err(vec![not_wired(path.unwrap_or(Path::new("projector.yaml")), "reading settings")])
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
    Err(vec![not_wired(path, "reading projections")])
}

fn not_wired(path: &Path, what: &str) -> Mistake {
    let place = Place { file: Arc::from(path), line: 1, column: 1 };
    Mistake::new(&place, format!("{what} is not wired yet"))
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
pub async fn open_store(_settings: &Settings, _purpose: Purpose) -> Result<SharedStore, AppError> {
    Err(AppError::NotWired("opening a store"))
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
pub async fn check_services(_settings: &Settings, _declarations: &[Arc<Declaration>]) -> Vec<ServiceFinding> {
    vec![ServiceFinding {
        what: "services".into(),
        ok: false,
        detail: "checking services is not wired yet".into(),
    }]
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
}

/// Runs until told to stop, or until caught up.
///
/// # Errors
/// What is wrong before joining ([`AppError::Configuration`] and others), or the process cannot go on.
pub async fn run(
    _settings: Settings,
    _options: RunOptions,
    _watcher: Arc<dyn RunWatcher>,
    _stop: CancellationToken,
) -> Result<RunOutcome, AppError> {
    Err(AppError::NotWired("running"))
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
    _options: DemoOptions,
    _watcher: Arc<dyn DemoWatcher>,
    _stop: CancellationToken,
) -> Result<DemoReport, AppError> {
    Err(AppError::NotWired("the demo"))
}
