//! Lag and age of one partition, for status as for metrics.

use crate::store::PartitionStatus;
use crate::telemetry::gauges::age_seconds;

/// An observation that is older says nothing about now.
pub const OBSERVATION_LIMIT_SECONDS: f64 = 10.0;

/// Whether the partition's owner is alive and has observed it within the last ten seconds, by the store's clock.
#[must_use]
pub fn is_observed(partition: &PartitionStatus) -> bool {
    partition.owner_alive
        && partition.observed_seconds_ago.is_some_and(|seconds| seconds <= OBSERVATION_LIMIT_SECONDS)
}

/// Readable end minus position; `None` while no end is known. It counts from the position in the store, so a partition
/// for which nothing has been committed to Kafka has a lag like any other.
#[must_use]
pub fn lag_records(partition: &PartitionStatus) -> Option<u64> {
    partition.readable_end.map(|end| partition.position.lag_to(end))
}

/// The age of the oldest event that is not applied, in seconds. `now` is in milliseconds since 1970-01-01 UTC.
///
/// Of a partition that nobody observes, "caught up" is old news and the age is unknown; but an event that was pending
/// then still is, and grows older.
#[must_use]
pub fn age(partition: &PartitionStatus, now: i64) -> Option<f64> {
    let lag = lag_records(partition);
    if lag == Some(0) && !is_observed(partition) {
        return None;
    }
    age_seconds(lag, partition.oldest_pending_at, now)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::position::{Epoch, NextOffset};
    use crate::record::TopicPartition;
    use crate::store::{VersionKey, VersionState};

    pub(crate) const NOW: i64 = 1_800_000_000_000;

    /// A live partition at 100 of 100, observed just now.
    pub(crate) fn caught_up(number: i32) -> PartitionStatus {
        PartitionStatus {
            version: VersionKey { projection: "catalogue".into(), version: 1 },
            version_state: VersionState::Live,
            partition: TopicPartition::new("shop.products", number),
            topic_id: None,
            position: NextOffset::new(100),
            boundary: NextOffset::new(80),
            epoch: Epoch::new(3),
            revision: 12,
            readable_end: Some(NextOffset::new(100)),
            oldest_pending_at: None,
            observed_seconds_ago: Some(0.4),
            owner_alive: true,
            blocked: None,
            quarantine: None,
            is_resume_requested: false,
            open_dead_letters: 0,
            oldest_dead_letter_at: None,
        }
    }

    #[test]
    fn a_position_behind_transaction_markers_has_no_lag_once_it_stands_at_the_end() {
        // data, marker, data, marker, end 4: the position steps over the last marker.
        let partition = PartitionStatus {
            position: NextOffset::new(4),
            readable_end: Some(NextOffset::new(4)),
            ..caught_up(0)
        };
        assert_eq!((lag_records(&partition), age(&partition, NOW)), (Some(0), Some(0.0)));
    }

    #[test]
    fn lag_counts_from_the_stores_position_where_nothing_was_ever_committed() {
        // Log start 4000, end 5000; earliest begins at 4000, latest at 5000; an empty log at 5000 = 5000.
        for (position, expected) in [(4000, 1000), (5000, 0)] {
            let partition = PartitionStatus {
                position: NextOffset::new(position),
                readable_end: Some(NextOffset::new(5000)),
                ..caught_up(0)
            };
            assert_eq!(lag_records(&partition), Some(expected));
        }
    }

    #[test]
    fn being_caught_up_is_not_believed_of_a_partition_that_nobody_observes() {
        let silent = PartitionStatus { observed_seconds_ago: Some(11.0), ..caught_up(0) };
        let dead = PartitionStatus { owner_alive: false, ..caught_up(0) };
        let never = PartitionStatus { observed_seconds_ago: None, ..caught_up(0) };
        for partition in [silent, dead, never] {
            assert!(!is_observed(&partition));
            assert_eq!(age(&partition, NOW), None);
        }
    }

    #[test]
    fn a_pending_event_grows_older_though_nobody_observes() {
        let partition = PartitionStatus {
            readable_end: Some(NextOffset::new(101)),
            oldest_pending_at: Some(NOW - 60_000),
            owner_alive: false,
            ..caught_up(0)
        };
        assert_eq!(age(&partition, NOW), Some(60.0));
    }

    proptest! {
        #[test]
        fn neither_is_ever_negative(position in 0_i64.., end in 0_i64.., oldest: i64, now in 0_i64..) {
            let partition = PartitionStatus {
                position: NextOffset::new(position),
                readable_end: Some(NextOffset::new(end)),
                oldest_pending_at: Some(oldest),
                ..caught_up(0)
            };
            let lag = lag_records(&partition).expect("the end is known");
            prop_assert_eq!(lag == 0, end <= position);
            prop_assert!(age(&partition, now).expect("a time is known") >= 0.0);
        }
    }
}
