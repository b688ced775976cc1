//! What `run` is asked, who is told about it, and how it ends.

use std::net::SocketAddr;

use serde::Serialize;

use crate::pipeline::tally::Totals;
use crate::record::TopicPartition;
use crate::store::{Quarantine, VersionKey};

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
    /// Everything is applied, and these versions cannot go live before somebody has mended what is named.
    NotLive(Vec<(VersionKey, String)>),
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
