//! The state of a partition, and of all views of a version.

use std::time::Duration;

use super::lag::{age, is_observed, lag_records};
use crate::store::{PartitionStatus, VersionState};
use crate::telemetry::{PartitionState, ViewState};

/// The state of one partition. A quarantine is stored, so it is true whether or not somebody observes.
#[must_use]
pub fn partition_state(partition: &PartitionStatus) -> PartitionState {
    if partition.quarantine.is_some() {
        PartitionState::Quarantined
    } else if !is_observed(partition) {
        PartitionState::Unowned
    } else if partition.blocked.is_some() {
        PartitionState::Blocked
    } else {
        PartitionState::Flowing
    }
}

/// What is true of all views of a version.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The state.
    pub state: ViewState,
    /// Why, where the state is not `ready`; and what is wrong all the same, where it is. No values of records.
    pub reason: Option<String>,
    /// Sum over the partitions; `None` while the end of one is not known.
    pub lag_records: Option<u64>,
    /// The highest age of a partition, so that one stuck partition does not hide in a total; `None` where one is unknown.
    pub age_seconds: Option<f64>,
    /// Sum over the partitions.
    pub open_dead_letters: i64,
}

/// Judges a version by its partitions. `limit` is its staleness, where it is known; `now` is in milliseconds since
/// 1970-01-01 UTC.
#[must_use]
pub fn judge(partitions: &[&PartitionStatus], limit: Option<Duration>, now: i64) -> Judgement {
    let lag_records =
        partitions.iter().try_fold(0_u64, |sum, partition| Some(sum.saturating_add(lag_records(partition)?)));
    let age_seconds =
        partitions.iter().try_fold(0.0_f64, |oldest, partition| Some(oldest.max(age(partition, now)?)));
    let (state, reason) = state(partitions, age_seconds_known(partitions, now), limit);
    Judgement {
        state,
        reason,
        lag_records,
        age_seconds,
        open_dead_letters: partitions.iter().map(|partition| partition.open_dead_letters).sum(),
    }
}

/// The highest age that is known: enough to say that a limit is broken, also while another partition's age is unknown.
fn age_seconds_known(partitions: &[&PartitionStatus], now: i64) -> f64 {
    partitions.iter().filter_map(|partition| age(partition, now)).fold(0.0, f64::max)
}

fn state(partitions: &[&PartitionStatus], age: f64, limit: Option<Duration>) -> (ViewState, Option<String>) {
    let of = |wanted: PartitionState| {
        let found: Vec<_> =
            partitions.iter().filter(|partition| partition_state(partition) == wanted).collect();
        (!found.is_empty()).then(|| {
            let first = found[0];
            let others =
                if found.len() > 1 { format!(" and {} more", found.len() - 1) } else { String::new() };
            (first, format!("{}{others}", first.partition))
        })
    };
    if partitions.is_empty() {
        return (ViewState::Unavailable, Some("the version has no partitions".to_owned()));
    }
    if let Some((first, names)) = of(PartitionState::Quarantined) {
        let why = first.quarantine.as_ref().map_or("unknown", |quarantine| quarantine.reason.as_str());
        return (ViewState::Quarantined, Some(format!("partition {names} is quarantined: {why}")));
    }
    if let Some((_, names)) = of(PartitionState::Unowned) {
        return (ViewState::Unavailable, Some(format!("nobody observes partition {names}")));
    }
    if let Some(first) = partitions.iter().find(|partition| partition.readable_end.is_none()) {
        let why = first.blocked.as_deref().unwrap_or("the broker does not answer");
        let why = format!("the end of partition {} is not known: {why}", first.partition);
        return (ViewState::Unavailable, Some(why));
    }
    if partitions[0].version_state != VersionState::Live {
        let behind = partitions.iter().filter(|partition| partition.position < partition.boundary).count();
        if behind == 0
            && let Some((first, names)) = of(PartitionState::Blocked)
        {
            let blocked = first.blocked.as_deref().unwrap_or("unknown");
            let why = format!("not live yet: partition {names} is blocked: {blocked}");
            return (ViewState::CatchingUp, Some(why));
        }
        let why = format!(
            "being built: partitions that have not reached their boundary: {behind} of {}",
            partitions.len()
        );
        return (ViewState::CatchingUp, Some(why));
    }
    if let Some(limit) = limit
        && age > limit.as_secs_f64()
    {
        let why = format!(
            "the oldest event that is not applied is {age:.0} s old; the limit is {:.0} s",
            limit.as_secs_f64()
        );
        return (ViewState::CatchingUp, Some(why));
    }
    let blocked = of(PartitionState::Blocked).map(|(first, names)| {
        format!("partition {names} is blocked: {}", first.blocked.as_deref().unwrap_or("unknown"))
    });
    (ViewState::Ready, blocked)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::lag::tests::{NOW, caught_up};
    use super::*;
    use crate::position::NextOffset;
    use crate::store::Quarantine;

    const LIMIT: Option<Duration> = Some(Duration::from_mins(2));

    fn behind(number: i32, seconds: i64) -> PartitionStatus {
        PartitionStatus {
            readable_end: Some(NextOffset::new(140)),
            oldest_pending_at: Some(NOW - seconds * 1000),
            ..caught_up(number)
        }
    }

    fn judged(partitions: &[PartitionStatus]) -> Judgement {
        judge(&partitions.iter().collect::<Vec<_>>(), LIMIT, NOW)
    }

    #[test]
    fn caught_up_is_ready_without_a_reason() {
        let judgement = judged(&[caught_up(0), caught_up(1)]);
        assert_eq!((judgement.state, judgement.reason), (ViewState::Ready, None));
        assert_eq!((judgement.lag_records, judgement.age_seconds), (Some(0), Some(0.0)));
    }

    #[test]
    fn lag_within_the_limit_is_ready_and_one_partition_above_it_is_catching_up() {
        assert_eq!(judged(&[behind(0, 119), caught_up(1)]).state, ViewState::Ready);
        let judgement = judged(&[caught_up(0), behind(1, 121)]);
        assert_eq!(judgement.state, ViewState::CatchingUp);
        assert_eq!((judgement.lag_records, judgement.age_seconds), (Some(40), Some(121.0)));
        assert_eq!(
            judgement.reason.as_deref(),
            Some("the oldest event that is not applied is 121 s old; the limit is 120 s")
        );
    }

    #[test]
    fn a_partition_that_nobody_observes_makes_the_views_unavailable() {
        let silent = PartitionStatus { observed_seconds_ago: Some(10.1), ..caught_up(1) };
        let judgement = judged(&[caught_up(0), silent]);
        assert_eq!(judgement.state, ViewState::Unavailable);
        assert_eq!(judgement.reason.as_deref(), Some("nobody observes partition shop.products:1"));
        assert_eq!(judgement.age_seconds, None);
    }

    #[test]
    fn an_unknown_end_makes_the_views_unavailable() {
        let unknown = |number, blocked: Option<&str>| PartitionStatus {
            readable_end: None,
            blocked: blocked.map(str::to_owned),
            ..caught_up(number)
        };
        let judgement = judged(&[caught_up(0), unknown(1, None)]);
        assert_eq!((judgement.state, judgement.lag_records), (ViewState::Unavailable, None));
        assert_eq!(
            judgement.reason.as_deref(),
            Some("the end of partition shop.products:1 is not known: the broker does not answer")
        );
        let judgement = judged(&[unknown(0, Some("no broker can be reached")), unknown(1, None)]);
        assert_eq!(
            judgement.reason.as_deref(),
            Some("the end of partition shop.products:0 is not known: no broker can be reached")
        );
    }

    #[test]
    fn a_quarantine_is_named_before_all_else() {
        let stopped = PartitionStatus {
            owner_alive: false,
            quarantine: Some(Quarantine { reason: "log_expired".into(), detail: "numbers".into() }),
            ..behind(2, 10_000)
        };
        let judgement = judged(&[PartitionStatus { owner_alive: false, ..caught_up(0) }, stopped]);
        assert_eq!(judgement.state, ViewState::Quarantined);
        assert_eq!(
            judgement.reason.as_deref(),
            Some("partition shop.products:2 is quarantined: log_expired")
        );
    }

    #[test]
    fn a_version_that_is_not_live_is_catching_up_and_says_how_far_it_is() {
        let building = |at| PartitionStatus {
            version_state: VersionState::Building,
            position: NextOffset::new(at),
            ..caught_up(0)
        };
        let judgement = judged(&[building(80), building(79)]);
        assert_eq!(judgement.state, ViewState::CatchingUp);
        assert_eq!(
            judgement.reason.as_deref(),
            Some("being built: partitions that have not reached their boundary: 1 of 2")
        );
    }

    #[test]
    fn a_version_that_waits_for_its_views_says_so() {
        let waiting = PartitionStatus {
            version_state: VersionState::Building,
            blocked: Some("it waits for its views".into()),
            ..caught_up(0)
        };
        let judgement = judged(&[waiting]);
        assert_eq!(judgement.state, ViewState::CatchingUp);
        assert_eq!(
            judgement.reason.as_deref(),
            Some("not live yet: partition shop.products:0 is blocked: it waits for its views")
        );
    }

    #[test]
    fn a_blocked_partition_is_named_while_the_view_is_within_its_limit() {
        let blocked = PartitionStatus { blocked: Some("SQLSTATE 53300".into()), ..behind(0, 5) };
        let judgement = judged(&[blocked]);
        assert_eq!(judgement.state, ViewState::Ready);
        assert_eq!(judgement.reason.as_deref(), Some("partition shop.products:0 is blocked: SQLSTATE 53300"));
    }

    prop_compose! {
        fn any_partition()(
            position in 0_i64..200, end in prop::option::of(0_i64..200), oldest in prop::option::of(NOW - 300_000..NOW + 1000),
            ago in prop::option::of(0.0..20.0_f64), owner_alive: bool, blocked: bool, is_quarantined: bool, is_live: bool,
        ) -> PartitionStatus {
            PartitionStatus {
                position: NextOffset::new(position),
                readable_end: end.map(NextOffset::new),
                oldest_pending_at: oldest,
                observed_seconds_ago: ago,
                owner_alive,
                blocked: blocked.then(|| "why".to_owned()),
                quarantine: is_quarantined.then(|| Quarantine { reason: "bug".into(), detail: String::new() }),
                version_state: if is_live { VersionState::Live } else { VersionState::Building },
                ..caught_up(0)
            }
        }
    }

    proptest! {
        #[test]
        fn ready_is_said_only_of_what_is_observed_live_and_within_its_limit(
            partitions in prop::collection::vec(any_partition(), 1..5)
        ) {
            let judgement = judged(&partitions);
            if judgement.state == ViewState::Ready {
                prop_assert!(partitions.iter().all(is_observed));
                prop_assert!(partitions.iter().all(|partition| partition.quarantine.is_none()));
                prop_assert!(partitions[0].version_state == VersionState::Live);
                prop_assert!(judgement.lag_records.is_some());
                prop_assert!(judgement.age_seconds.is_none_or(|age| age <= 120.0));
            } else {
                prop_assert!(judgement.reason.is_some());
            }
        }

        #[test]
        fn adding_a_quarantined_partition_never_hides_it(partitions in prop::collection::vec(any_partition(), 0..5)) {
            let mut partitions = partitions;
            partitions.push(PartitionStatus {
                quarantine: Some(Quarantine { reason: "bug".into(), detail: String::new() }),
                ..caught_up(9)
            });
            prop_assert_eq!(judged(&partitions).state, ViewState::Quarantined);
        }
    }
}
