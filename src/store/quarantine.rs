//! Why a partition is quarantined, and what ends it.

use super::VersionKey;
use crate::fault::RecordFault;
use crate::record::{RecordCoordinates, TopicPartition};

/// Why a partition is quarantined. Survives restart and change of owner; ends only by a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantine {
    /// A stable word: a record's reason, or `log_expired`, `log_truncated`, `topic_recreated`, `bug`.
    pub reason: String,
    /// The place and the numbers, without values of records. What to do is [`Quarantine::decided_by`].
    pub detail: String,
}

impl Quarantine {
    /// The log no longer reaches back to the position.
    pub const LOG_EXPIRED: &'static str = "log_expired";
    /// The position lies beyond the end of the log, or the log was cut below it and has grown past it again.
    pub const LOG_TRUNCATED: &'static str = "log_truncated";
    /// The topic has another id than the position belongs to.
    pub const TOPIC_RECREATED: &'static str = "topic_recreated";
    /// Something happened that must not.
    pub const BUG: &'static str = "bug";

    /// The quarantine that a record causes.
    #[must_use]
    pub fn of_record(at: &RecordCoordinates, fault: &RecordFault) -> Self {
        let detail = format!("record {at} at {}: {}", fault.stage, fault.explained());
        Self { reason: fault.reason.as_str().to_owned(), detail }
    }

    /// The quarantine for something that must not happen.
    #[must_use]
    pub fn of_bug(detail: &str) -> Self {
        Self { reason: Self::BUG.to_owned(), detail: format!("{detail}; please report it") }
    }

    /// Whether `resume` may end it. A fault of the log is decided otherwise: going on at the same position would skip or
    /// mix records of two logs without a word (promise P6).
    #[must_use]
    pub fn ends_by_resume(&self) -> bool {
        ![Self::LOG_EXPIRED, Self::LOG_TRUNCATED, Self::TOPIC_RECREATED].contains(&self.reason.as_str())
    }

    /// The command that decides it. `resume` refuses faults of the log: those end with the version.
    #[must_use]
    pub fn decided_by(&self, version: &VersionKey, partition: &TopicPartition) -> String {
        if self.ends_by_resume() {
            format!("projector resume {} --partition {partition} [--dead-letter]", version.projection)
        } else {
            format!("projector retire {version} --execute")
        }
    }
}
