//! What goes into a store and comes out of it.

use std::sync::Arc;

use super::Quarantine;
use crate::dead_letter::DeadLetter;
use crate::fold::FoldedTable;
use crate::position::{Epoch, Fence, NextOffset, Revision};
use crate::projection::{Declaration, Table};
use crate::record::TopicPartition;

/// One version of one projection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionKey {
    /// The projection's name.
    pub projection: Arc<str>,
    /// The version, from 1.
    pub version: u32,
}

/// Printed as `name@version`.
impl std::fmt::Display for VersionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.projection, self.version)
    }
}

/// This process, in `projector_instances`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub Arc<str>);

/// What a store is like before anything is done to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Whether the projector's own tables are there.
    pub layout: LayoutState,
    /// What would keep a run from working.
    pub obstacles: Vec<Obstacle>,
}

/// Whether the projector's own tables are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutState {
    /// They are not; a run makes them, or somebody else does.
    Absent,
    /// They are.
    Present,
}

/// Something that would keep a run from working.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// What.
    pub problem: String,
    /// What to do about it.
    pub fix: String,
}

/// Which log a position belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogIdentity {
    /// The cluster's id.
    pub cluster_id: String,
    /// The consumer group.
    pub consumer_group: String,
}

/// A version to register.
#[derive(Debug, Clone)]
pub struct Registration {
    /// What is registered.
    pub declaration: Arc<Declaration>,
    /// Whose offsets its positions are.
    pub log: LogIdentity,
    /// Every partition of every source, with start and boundary as read just before.
    pub partitions: Vec<PartitionStart>,
}

/// Where a partition of a new version begins, and where the version has caught up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStart {
    /// The partition.
    pub partition: TopicPartition,
    /// The topic's id, where the broker gives one.
    pub topic_id: Option<String>,
    /// The first position.
    pub start: NextOffset,
    /// The readable end at registration.
    pub boundary: NextOffset,
}

/// What registering did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// The version is new.
    New,
    /// It was there already, with the same digest.
    Known,
}

/// The state of a version (section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VersionState {
    /// It has not reached its boundary yet.
    Building,
    /// It has reached its boundary and is not live.
    CaughtUp,
    /// Its tables stand behind the views.
    Live,
    /// It has been retired.
    Retired,
}

impl VersionState {
    /// The state's name in the store, in JSON and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::CaughtUp => "caught_up",
            Self::Live => "live",
            Self::Retired => "retired",
        }
    }
}

/// A row of `projector_versions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRow {
    /// The version.
    pub key: VersionKey,
    /// Its state.
    pub state: VersionState,
    /// The mapping's text.
    pub text: String,
    /// Its digest.
    pub digest: String,
    /// The consumer group and cluster that its positions belong to.
    pub log: LogIdentity,
}

/// A partition to take over.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The version.
    pub version: VersionKey,
    /// The partition.
    pub partition: TopicPartition,
    /// The topic's id as the broker gives it now, where it does.
    pub topic_id: Option<String>,
    /// The digest of the mapping that the claimer applies; see [`Declaration::digest`].
    pub digest: String,
    /// The claiming instance.
    pub instance: InstanceId,
}

/// What an instance learns when it reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Requests of operators for partitions that it owns, by version and partition.
    pub requests: Vec<OperatorRequest>,
    /// Partitions that it reported and does not own any more, by version and partition: claimed by somebody else, or gone
    /// with a retired version. The epoch is the one that it reported.
    pub lost: Vec<(VersionKey, TopicPartition, Epoch)>,
}

/// What a claim found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The partition is this instance's.
    Owned(PositionRow),
    /// Another claim was quicker; look again if the group still assigns the partition.
    Lost,
    /// The version is no longer registered with this mapping: it has been retired, and perhaps registered anew.
    Gone,
}

/// A row of `projector_positions` as its new owner found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionRow {
    /// Position, epoch (already this owner's) and revision.
    pub fence: Fence,
    /// The boundary recorded at registration.
    pub boundary: NextOffset,
    /// The topic's id when the position was written, where it was known.
    pub topic_id: Option<String>,
    /// The leader epoch of the last applied record, where it was known.
    pub leader_epoch: Option<i32>,
    /// The quarantine, if the partition is in one.
    pub quarantine: Option<Quarantine>,
}

/// What the next transaction does to one partition's position row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advance {
    /// The partition.
    pub partition: TopicPartition,
    /// What the row must hold.
    pub expected: Fence,
    /// The position afterwards; the same as before where nothing was read.
    pub to: NextOffset,
    /// The topic's id, to be kept with the position; `None` keeps what is there.
    pub topic_id: Option<String>,
    /// The leader epoch of the last record of the batch; `None` keeps what is there.
    pub leader_epoch: Option<i32>,
    /// What becomes of the partition's quarantine.
    pub quarantine: QuarantineChange,
}

/// What a transaction does to a partition's quarantine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuarantineChange {
    /// Nothing.
    Keep,
    /// The partition enters quarantine at its new position; an operator's request ends with it.
    Enter(Quarantine),
    /// The quarantine ends, and the operator's request with it.
    End,
}

/// Everything that one transaction writes.
#[derive(Debug)]
pub struct Transaction<'a> {
    /// The version.
    pub version: &'a VersionKey,
    /// The version's tables, in declared order.
    pub tables: &'a [Table],
    /// The rounds in order; in each, the tables that have rows.
    pub rounds: Vec<Vec<FoldedTable<'a>>>,
    /// Dead letters of the batch.
    pub dead_letters: Vec<&'a DeadLetter>,
    /// The partitions; no partition twice.
    pub advances: &'a [Advance],
}

/// What became of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// It is durable.
    Committed {
        /// Updates that found no row, as folded: several of one row in one transaction count once.
        missed_updates: u64,
    },
    /// It was rolled back: these partitions (indexes into the advances) are owned by somebody else, or have moved.
    Fenced(Vec<usize>),
}

/// What became of one partition's part of a transaction whose COMMIT went unanswered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Same epoch, revision + 1: it was applied.
    Applied,
    /// Same epoch, same revision: it was not, and is to be done again.
    NotApplied,
    /// Another epoch, or no row: somebody else owns the partition.
    Fenced,
}

/// Identifies a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterKey {
    /// The version that could not use the record.
    pub version: VersionKey,
    /// The partition.
    pub partition: TopicPartition,
    /// The topic's id, or nothing where it is not known.
    pub topic_id: Option<String>,
    /// The record's offset.
    pub offset: crate::position::RecordOffset,
}

/// A dead letter as the store holds it.
#[derive(Debug, Clone)]
pub struct StoredDeadLetter {
    /// The dead letter itself.
    pub letter: DeadLetter,
    /// `open`, or how it was resolved.
    pub state: String,
    /// When it was written: microseconds since 1970-01-01 UTC.
    pub created_at: i64,
    /// When the dead-letter topic acknowledged it, if it has.
    pub published_at: Option<i64>,
}

/// Which dead letters to list.
#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    /// Of this projection only.
    pub projection: Option<String>,
    /// Of this version only.
    pub version: Option<u32>,
    /// Of this partition only.
    pub partition: Option<TopicPartition>,
    /// The record at this offset only.
    pub offset: Option<i64>,
    /// With this reason only.
    pub reason: Option<String>,
    /// In this state only (`open`, …).
    pub state: Option<String>,
    /// At most so many.
    pub limit: u32,
}

/// A heartbeat with observations of the owned partitions.
#[derive(Debug, Clone)]
pub struct InstanceReport {
    /// This instance.
    pub instance: InstanceId,
    /// The host that it runs on.
    pub host: String,
    /// The program's version.
    pub program_version: String,
    /// When a broker last answered: microseconds since 1970-01-01 UTC.
    pub broker_answered_at: Option<i64>,
    /// What it sees of the partitions that it owns.
    pub observations: Vec<Observation>,
}

/// What an owner sees of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The version.
    pub version: VersionKey,
    /// The partition.
    pub partition: TopicPartition,
    /// The owner's epoch: an older owner's observation never replaces a newer one's.
    pub epoch: Epoch,
    /// The readable end of the log, where it is known.
    pub readable_end: Option<NextOffset>,
    /// The time of the oldest event that is not applied: milliseconds since 1970-01-01 UTC. `None`: caught up, or unknown.
    pub oldest_pending_at: Option<i64>,
    /// Why the partition is blocked, if it is.
    pub blocked: Option<String>,
}

/// What an operator asks of a partition's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorRequest {
    /// The version.
    pub version: VersionKey,
    /// The partition.
    pub partition: TopicPartition,
    /// The row's revision when the request was read: a request that is older than the quarantine is not for it.
    pub revision: Revision,
    /// What is asked.
    pub action: OperatorAction,
}

/// What an operator can ask of a partition's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorAction {
    /// End the quarantine and try the record again.
    Resume,
    /// End the quarantine; the record that caused it becomes a dead letter.
    ResumeWithDeadLetter,
}

/// A request to end quarantines.
#[derive(Debug, Clone)]
pub struct ResumeRequest {
    /// The projection; its version that is not retired is meant.
    pub projection: String,
    /// This version only.
    pub version: Option<u32>,
    /// This partition only; all quarantined ones where absent.
    pub partition: Option<TopicPartition>,
    /// What is asked.
    pub action: OperatorAction,
}

/// What became of a request to resume one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeOutcome {
    /// The partition.
    pub partition: TopicPartition,
    /// Whether a running owner will do it, or it is done.
    pub state: ResumeState,
}

/// Whether a resume is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeState {
    /// The owner picks the request up within about a second.
    LeftForOwner,
    /// Nobody owns the partition: the request waits in the store for the next owner.
    LeftForNextOwner,
}

/// Rows of a view as text, for people and for comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
}

/// One partition of one version, as status shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionStatus {
    /// The version.
    pub version: VersionKey,
    /// The version's state.
    pub version_state: VersionState,
    /// The partition.
    pub partition: TopicPartition,
    /// The id of the topic that the position belongs to, where it is known.
    pub topic_id: Option<String>,
    /// The position.
    pub position: NextOffset,
    /// The boundary.
    pub boundary: NextOffset,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// The transactions so far.
    pub revision: i64,
    /// The last observation, if there is one of this epoch.
    pub readable_end: Option<NextOffset>,
    /// Time of the oldest event that is not applied, milliseconds since 1970-01-01 UTC.
    pub oldest_pending_at: Option<i64>,
    /// Seconds since the observation, by the store's clock.
    pub observed_seconds_ago: Option<f64>,
    /// Whether the owner's heartbeat is fresh, by the store's clock.
    pub owner_alive: bool,
    /// Why the partition is blocked, if it is.
    pub blocked: Option<String>,
    /// The quarantine, if the partition is in one.
    pub quarantine: Option<Quarantine>,
    /// Whether an operator has asked to end the quarantine, and no owner has yet tried.
    pub is_resume_requested: bool,
    /// Dead letters that are open.
    pub open_dead_letters: i64,
    /// When the oldest open dead letter was written: microseconds since 1970-01-01 UTC.
    pub oldest_dead_letter_at: Option<i64>,
}

/// What promoting the first version found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promotion {
    /// The version is live: by this call, or already.
    Live,
    /// Some partition has not reached its boundary.
    NotYet,
}

/// What retiring a version drops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetirePlan {
    /// The version and its state.
    pub version: VersionRow,
    /// Views.
    pub views: Vec<String>,
    /// Physical tables with their number of rows.
    pub tables: Vec<(String, i64)>,
    /// Dead letters, of which so many are open.
    pub dead_letters: i64,
    /// Open dead letters.
    pub open_dead_letters: i64,
    /// Whether an instance owns a partition of it now.
    pub in_use: bool,
    /// The SQL that drops the views and tables, in order, where somebody else makes and drops them (`store.ddl: verify`) and
    /// retiring leaves them; else nothing.
    pub left: Vec<String>,
}
