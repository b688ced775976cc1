//! CONSUME: records, rebalances and ends of partitions, as the rest of the program sees them.
//!
//! A [`Source`] is what one version reads through. [`kafka`] makes one from a consumer client of its own, with one thread
//! that polls it and owns its rebalancing; [`memory`] makes one from lists, for tests. The pipeline sees the same protocol:
//!
//! 1. [`SourceEvent::Assigned`] names partitions that the group gives to this member. Nothing is read from them yet.
//! 2. The pipeline claims each in the store and calls [`SourceControl::begin`] with the claimed position. The source adds
//!    it by its own incremental assign, at exactly that offset. Records from it carry the stream number that `begin` took,
//!    so that records of an earlier assignment which still stand in a channel can be told apart.
//! 3. [`SourceEvent::Revoked`] names partitions that are taken away. The source waits, for a bounded time, until the
//!    pipeline has dropped [`Revocation`]; then it lets them go. Where they are lost already, it doesn't wait.

pub mod kafka;
pub mod memory;
pub mod quiet;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use crate::position::NextOffset;
use crate::record::{Record, TopicPartition};
use crate::telemetry::RetryClass;

/// What one version reads through. The three parts are apart so that one loop can wait for all of them.
#[derive(Debug)]
pub struct Source {
    /// Calls into the source.
    pub control: Arc<dyn SourceControl>,
    /// Rebalances, ends and faults, in order. Must be read promptly: a revocation waits for it.
    pub events: mpsc::UnboundedReceiver<SourceEvent>,
    /// Records. Bounded: back-pressure is not reading from it.
    pub records: mpsc::Receiver<Vec<Consumed>>,
}

/// One item of the data stream, in partition order.
#[derive(Debug)]
pub enum Consumed {
    /// A record.
    Record {
        /// The stream number of the `begin` that it belongs to.
        stream: StreamId,
        /// The record.
        record: Record,
    },
    /// The readable end was reached: everything before `end` has been delivered, or holds no record for us
    /// (transaction markers, aborted or compacted records).
    End {
        /// The stream number of the `begin` that it belongs to.
        stream: StreamId,
        /// The partition.
        partition: TopicPartition,
        /// The readable end.
        end: NextOffset,
    },
}

/// Distinguishes the assignments of one partition to this process. Grows with every [`SourceControl::begin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The number of no stream: [`SourceControl::begin`] never returns it.
    pub const NONE: Self = Self(0);
}

/// What happens to the assignment, and to the log.
#[derive(Debug)]
pub enum SourceEvent {
    /// The group gives these partitions to this member.
    Assigned {
        /// The partitions.
        partitions: Vec<TopicPartition>,
    },
    /// The group takes these partitions away.
    Revoked {
        /// The partitions.
        partitions: Vec<TopicPartition>,
        /// Whether they are still this member's until the revocation is dropped.
        ownership: Ownership,
        /// Dropped by the pipeline when it has drained them.
        done: Revocation,
    },
    /// The log of a partition is not what the position says (promise P6). The partition delivers nothing more until it is
    /// begun again.
    LogFault {
        /// The partition.
        partition: TopicPartition,
        /// The stream number of the `begin` that it belongs to.
        stream: StreamId,
        /// What was found.
        fault: LogFault,
    },
    /// The client has stopped delivering a partition although its log holds the position: it is to be begun again.
    Interrupted {
        /// The partition.
        partition: TopicPartition,
        /// The stream number of the `begin` that it belongs to.
        stream: StreamId,
        /// The first offset that the log holds.
        log_start: NextOffset,
    },
    /// The client reports a fault that it recovers from by itself (brokers down, authentication, a topic that is missing):
    /// to be shown, and retried by the client. `None`: it has recovered.
    Trouble(Option<Trouble>),
    /// The client cannot go on (a fatal error of the library). The pipeline closes the source and opens a new one.
    Fatal(String),
}

/// A fault of the brokers that the client goes on to try against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What is wrong; no payload and no secret.
    pub what: String,
    /// Whether it passes by itself.
    pub class: RetryClass,
}

/// Whether revoked partitions may still be written and committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Until the revocation is dropped.
    UntilDone,
    /// No longer: the member was expelled or its session has expired.
    Lost,
}

/// Held by the pipeline while it drains revoked partitions; dropping it lets them go.
#[derive(Debug)]
pub struct Revocation(pub Option<oneshot::Sender<()>>);

impl Revocation {
    /// Whether the source has stopped waiting.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// What is wrong with a partition's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFault {
    /// The position lies before the first record that the log still holds.
    Expired {
        /// The position.
        position: NextOffset,
        /// The first offset that the log holds.
        log_start: NextOffset,
        /// The readable end.
        log_end: NextOffset,
    },
    /// The position lies beyond the end of the log.
    Truncated {
        /// The position.
        position: NextOffset,
        /// The first offset that the log holds.
        log_start: NextOffset,
        /// The readable end.
        log_end: NextOffset,
    },
    /// The position lies within the log, and what stands before it is not what was applied: the log was cut below the position
    /// by an unclean election of a leader, and has grown past it again.
    Rewritten {
        /// The position.
        position: NextOffset,
        /// What shows it: offsets and leader epochs, no payload.
        evidence: String,
    },
    /// The topic has another id than the position belongs to.
    Recreated {
        /// The id in the store.
        expected: String,
        /// The id that the broker gives.
        found: String,
    },
}

impl LogFault {
    /// The fault of a record before `position` that another leader has written than the one that was applied; none where they
    /// are the same, or one of them is not known.
    #[must_use]
    pub fn of_record_before(position: NextOffset, applied: Option<i32>, found: Option<i32>) -> Option<Self> {
        let (applied, found) = (applied?, found?);
        (applied != found).then(|| Self::Rewritten {
            position,
            evidence: format!(
                "the record before it was written by leader epoch {found}, the one that was applied there by {applied}"
            ),
        })
    }
}

/// Calls from the pipeline into a source. None of them blocks; those that wait for the broker are bounded by `timeout`.
#[async_trait]
pub trait SourceControl: Send + Sync + std::fmt::Debug {
    /// Starts to deliver a claimed partition from exactly `from`, and returns the number of the stream. A partition that is
    /// no longer assigned is ignored: its revocation is already among the events.
    ///
    /// `last_epoch` is the leader epoch of the last record before `from` that was applied, where it is known. Where the log
    /// holds a record just before `from`, it must be of that epoch; else nothing is delivered but [`LogFault::Rewritten`].
    /// Offset and epoch together name a record: no two leaders have the same epoch.
    fn begin(&self, partition: &TopicPartition, from: NextOffset, last_epoch: Option<i32>) -> StreamId;

    /// Stops delivering a partition that is blocked or quarantined, and drops what was prefetched; it stays assigned.
    fn pause(&self, partition: &TopicPartition);

    /// Commits positions to the group, with member id and generation. Works while the polling thread is inside a revocation,
    /// which waits for just such a commit.
    ///
    /// # Errors
    /// The broker refused or did not answer; harmless, since the store has the truth.
    async fn commit(
        &self,
        positions: &[(TopicPartition, NextOffset)],
        timeout: Duration,
    ) -> Result<(), SourceError>;

    /// The last known start and readable end of the begun partitions, without asking the broker, and when a broker last
    /// answered.
    fn ends(&self) -> KnownEnds;

    /// Leaves the group and ends the client, within `deadline`.
    async fn close(&self, deadline: Duration);
}

/// What the client knows of the logs.
#[derive(Debug, Clone, Default)]
pub struct KnownEnds {
    /// The readable end of each partition: never an offset that a read-committed reader cannot reach.
    pub readable: BTreeMap<TopicPartition, NextOffset>,
    /// When a broker last answered: microseconds since 1970-01-01 UTC.
    pub broker_answered_at: Option<i64>,
}

/// A topic's partitions and identity, as the broker describes them at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDescription {
    /// The topic's id, where the broker gives one.
    pub topic_id: Option<String>,
    /// First offset and readable end of each partition, by number.
    pub partitions: BTreeMap<i32, (NextOffset, NextOffset)>,
}

/// What is asked of a cluster before joining, and by commands.
#[async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// The cluster's id.
    async fn cluster_id(&self) -> Result<String, SourceError>;

    /// Describes topics. A topic that does not exist is [`SourceError::MissingTopic`].
    async fn describe(&self, topics: &[String]) -> Result<BTreeMap<String, TopicDescription>, SourceError>;

    /// Joins `group` and reads `topics`.
    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Source, SourceError>;
}

/// A failure of a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// No broker answered, or answered with an error that passes.
    #[error("kafka did not {action}: {detail}")]
    Unavailable {
        /// What was asked.
        action: &'static str,
        /// The client's words: codes and broker names, no payload.
        detail: String,
    },
    /// The topic does not exist.
    #[error("topic {topic} does not exist; create it, or correct the name in the projection")]
    MissingTopic {
        /// The topic.
        topic: String,
    },
    /// The broker forbids it: authentication or authorisation.
    #[error("kafka forbids to {action}: {detail}; check the credentials and the ACLs of this user")]
    Forbidden {
        /// What was asked.
        action: &'static str,
        /// The client's words.
        detail: String,
    },
    /// A setting that the client does not take.
    #[error("kafka setting {property}: {detail}")]
    Setting {
        /// The property.
        property: String,
        /// The client's words.
        detail: String,
    },
    /// The member is not (or no longer) part of the group's current generation.
    #[error("kafka refused the commit: {detail}")]
    NotAMember {
        /// The client's words.
        detail: String,
    },
}
