//! What a process has done with the records of one version: counted for its last words, and told in the log once a kind.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::fault::{Reason, Stage};
use crate::record::TopicPartition;
use crate::store::VersionKey;
use crate::telemetry;

/// More types are counted and not told.
const TYPES_TOLD: usize = 100;

/// Counts of one version since the process began to serve it.
#[derive(Debug, Default)]
pub struct Tally {
    records: AtomicU64,
    dead_letters: AtomicU64,
    ignored: AtomicU64,
    told_reasons: Mutex<BTreeSet<Reason>>,
    told_types: Mutex<BTreeSet<String>>,
}

/// What a process has done: records that positions have passed, and what of them changed nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Records, all together.
    pub records: u64,
    /// Those that became dead letters.
    pub dead_letters: u64,
    /// Those that no handler wanted. Read records count, so one that was read twice counts twice.
    pub ignored: u64,
}

impl std::ops::Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            dead_letters: self.dead_letters + other.dead_letters,
            ignored: self.ignored + other.ignored,
        }
    }
}

impl Tally {
    /// The counts until now.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            records: self.records.load(Ordering::Relaxed),
            dead_letters: self.dead_letters.load(Ordering::Relaxed),
            ignored: self.ignored.load(Ordering::Relaxed),
        }
    }

    /// Records have become durable.
    pub fn applied(&self, version: &VersionKey, partition: &TopicPartition, records: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        telemetry::records_applied(version, partition, records);
    }

    /// A dead letter has become durable.
    pub fn dead_letter(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        stage: Stage,
        reason: Reason,
    ) {
        self.dead_letters.fetch_add(1, Ordering::Relaxed);
        telemetry::dead_letter(version, partition, stage, reason);
        if self.told_reasons.lock().unwrap_or_else(PoisonError::into_inner).insert(reason) {
            tracing::warn!(%version, %partition, %reason, "the first dead letter of this reason; `projector dlq list` shows all");
        }
    }

    /// An event that no handler wanted was read.
    pub fn ignored(&self, version: &VersionKey, topic: &std::sync::Arc<str>, event_type: &str) {
        self.ignored.fetch_add(1, Ordering::Relaxed);
        telemetry::event_ignored(version, topic, event_type);
        let mut told = self.told_types.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < TYPES_TOLD && !told.contains(event_type) {
            told.insert(event_type.to_owned());
            tracing::info!(%version, %topic, event_type, "no handler for events of this type: they are ignored");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_once_is_counted_each_time() {
        let tally = Tally::default();
        let version = VersionKey { projection: "orders".into(), version: 1 };
        let partition = TopicPartition::new("shop.orders", 0);
        tally.applied(&version, &partition, 5);
        for _ in 0..2 {
            tally.dead_letter(&version, &partition, Stage::Decode, Reason::InvalidJson);
        }
        for number in 0..2 * TYPES_TOLD {
            tally.ignored(&version, &partition.topic, &format!("Type{number}"));
        }
        assert_eq!(tally.totals(), Totals { records: 5, dead_letters: 2, ignored: 200 });
        assert_eq!(tally.told_reasons.lock().expect("not poisoned").len(), 1);
        assert_eq!(tally.told_types.lock().expect("not poisoned").len(), TYPES_TOLD);
        let twice = tally.totals() + tally.totals();
        assert_eq!(twice, Totals { records: 10, dead_letters: 4, ignored: 400 });
    }
}
