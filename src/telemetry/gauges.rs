//! Gauges: what is true now of the partitions that this process owns, and of their views.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::record::TopicPartition;
use crate::store::VersionKey;

pub(super) const DEAD_LETTERS_OPEN: &str = "projector_dead_letters_open";
pub(super) const DEAD_LETTERS_OLDEST_AGE: &str = "projector_dead_letters_oldest_age_seconds";
pub(super) const PARTITION_LAG: &str = "projector_partition_lag_records";
pub(super) const PARTITION_AGE: &str = "projector_partition_age_seconds";
pub(super) const PARTITION_STATE: &str = "projector_partition_state";
pub(super) const VIEW_STATE: &str = "projector_view_state";
pub(super) const VIEW_STALE: &str = "projector_view_stale";
pub(super) const VIEW_LIMIT: &str = "projector_view_staleness_limit_seconds";
pub(super) const BUILD_INFO: &str = "projector_build_info";

/// Runners report once a second; a report older than this is not shown any more.
const REPORT_LIMIT: Duration = Duration::from_secs(30);

macro_rules! states {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $of:literal])+ $state:ident = $text:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[doc = $of])+ $state,)+ }

        impl $name {
            /// Every state.
            pub const ALL: &[Self] = &[$(Self::$state,)+];

            /// The stable name in metrics, JSON, SQL and on the terminal.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$state => $text,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

states! {
    /// The state of a partition of a version.
    PartitionState {
        /// An owner applies its records.
        Flowing = "flowing",
        /// Its owner waits for a fault outside to be fixed, and goes on by itself.
        Blocked = "blocked",
        /// It has stopped until a command decides.
        Quarantined = "quarantined",
        /// Nobody has observed it within the last ten seconds.
        Unowned = "unowned",
    }
}

states! {
    /// What a reader of a view can rely on.
    ViewState {
        /// The view is there and within its staleness limit.
        Ready = "ready",
        /// It is being built, or the oldest event that it lacks is older than its limit.
        CatchingUp = "catching_up",
        /// Nobody can tell how fresh it is.
        Unavailable = "unavailable",
        /// Some partition has stopped until a command decides.
        Quarantined = "quarantined",
    }
}

/// What a runner reports of one partition that it owns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartitionGauges {
    /// Readable end minus position; `None` while the end is not known.
    pub lag_records: Option<u64>,
    /// Time of the oldest event that is not applied, in milliseconds since 1970-01-01 UTC. `None`: caught up, or the event
    /// carries no time.
    pub oldest_pending_millis: Option<i64>,
    /// The state.
    pub state: PartitionState,
    /// The limit of the projection's views.
    pub staleness: Duration,
}

impl PartitionGauges {
    /// The age of the oldest event that is not applied, in seconds; see [`age_seconds`].
    #[must_use]
    pub fn age_seconds(&self, now: i64) -> Option<f64> {
        age_seconds(self.lag_records, self.oldest_pending_millis, now)
    }
}

/// The age of a partition's oldest event that is not applied, in seconds. `now` and `oldest_pending` are in milliseconds
/// since 1970-01-01 UTC.
///
/// Caught up is 0, however old the last record is. An event from the future (a clock that is ahead) counts as 0, and is
/// asked again at the next reading, so it freezes nothing. Behind, but without a time: unknown, which is `None` and an
/// absent series, never 0.
#[must_use]
pub fn age_seconds(lag_records: Option<u64>, oldest_pending: Option<i64>, now: i64) -> Option<f64> {
    match (lag_records, oldest_pending) {
        (Some(0), _) => Some(0.0),
        (_, Some(oldest)) => {
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of some years fit into 52 bits")]
            let seconds = now.saturating_sub(oldest).max(0) as f64 / 1000.0;
            Some(seconds)
        }
        (_, None) => None,
    }
}

/// The state of all views of one version, as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewGauges {
    /// The version.
    pub version: VersionKey,
    /// The state of its views.
    pub state: ViewState,
}

/// Open dead letters of one partition, as the store knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterGauges {
    /// The version.
    pub version: VersionKey,
    /// The partition.
    pub partition: TopicPartition,
    /// How many are open.
    pub open: i64,
    /// When the oldest open one was written: milliseconds since 1970-01-01 UTC.
    pub oldest_millis: Option<i64>,
}

type Owned = BTreeMap<VersionKey, BTreeMap<TopicPartition, (Instant, PartitionGauges)>>;

static OWNED: Mutex<Owned> = Mutex::new(BTreeMap::new());

fn owned() -> MutexGuard<'static, Owned> {
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports a partition that this process owns; to be repeated every second.
pub fn partition(version: &VersionKey, partition: &TopicPartition, gauges: &PartitionGauges) {
    owned().entry(version.clone()).or_default().insert(partition.clone(), (Instant::now(), *gauges));
}

/// The partition is no longer this process's: its series are gone from the next scrape on.
pub fn partition_gone(version: &VersionKey, partition: &TopicPartition) {
    let mut owned = owned();
    if let Some(partitions) = owned.get_mut(version) {
        partitions.remove(partition);
        if partitions.is_empty() {
            owned.remove(version);
        }
    }
}

/// The versions of which this process owns a partition.
#[must_use]
pub fn owned_versions() -> Vec<VersionKey> {
    owned().keys().cloned().collect()
}

/// Whether this process owns the partition.
#[must_use]
pub fn is_owned(version: &VersionKey, partition: &TopicPartition) -> bool {
    owned().get(version).is_some_and(|partitions| partitions.contains_key(partition))
}

/// Writes all gauges in Prometheus' text format.
pub(super) fn write(page: &mut String, views: &[ViewGauges], letters: &[DeadLetterGauges], now: i64) {
    let owned = owned().clone();
    write_owned(page, &owned, Instant::now(), views, letters, now);
}

fn write_owned(
    page: &mut String,
    owned: &Owned,
    at: Instant,
    views: &[ViewGauges],
    letters: &[DeadLetterGauges],
    now: i64,
) {
    let mut families = Families::default();
    families.add(BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    for (version, partitions) in owned {
        let fresh: Vec<_> = partitions
            .iter()
            .filter(|(_, (reported, _))| at.saturating_duration_since(*reported) <= REPORT_LIMIT)
            .map(|(partition, (_, gauges))| (partition, gauges))
            .collect();
        for (partition, gauges) in &fresh {
            families.add_partition(version, partition, gauges, now);
        }
        if let Some((_, gauges)) = fresh.first() {
            let number = version.version.to_string();
            let labels = [("projection", &*version.projection), ("projection_version", number.as_str())];
            let limit = gauges.staleness.as_secs_f64();
            let is_stale =
                fresh.iter().any(|(_, gauges)| gauges.age_seconds(now).is_some_and(|age| age > limit));
            families.add(VIEW_LIMIT, &labels, limit);
            families.add(VIEW_STALE, &labels, f64::from(u8::from(is_stale)));
        }
    }
    for view in views {
        families.add_view(view);
    }
    for letter in letters {
        families.add_letters(letter, now);
    }
    families.write(page);
}

/// Lines by metric, since the text format wants all series of a metric together.
#[derive(Default)]
struct Families(BTreeMap<&'static str, String>);

impl Families {
    fn add(&mut self, name: &'static str, labels: &[(&str, &str)], value: f64) {
        let lines = self.0.entry(name).or_default();
        lines.push_str(name);
        lines.push('{');
        for (index, (label, text)) in labels.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let text = text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
            // Writing to a String cannot fail.
            let _ = write!(lines, "{comma}{label}=\"{text}\"");
        }
        let _ = writeln!(lines, "}} {value}");
    }

    fn add_partition(
        &mut self,
        version: &VersionKey,
        partition: &TopicPartition,
        gauges: &PartitionGauges,
        now: i64,
    ) {
        with_labels(version, partition, |labels| {
            if let Some(lag) = gauges.lag_records {
                #[expect(clippy::cast_precision_loss, reason = "an offset fits into 52 bits in practice")]
                self.add(PARTITION_LAG, labels, lag as f64);
            }
            if let Some(age) = gauges.age_seconds(now) {
                self.add(PARTITION_AGE, labels, age);
            }
            // `unowned` is never true of a partition that is owned here: the series would say nothing.
            for state in PartitionState::ALL.iter().filter(|state| **state != PartitionState::Unowned) {
                let mut labels = labels.to_vec();
                labels.push(("state", state.as_str()));
                self.add(PARTITION_STATE, &labels, f64::from(u8::from(*state == gauges.state)));
            }
        });
    }

    fn add_view(&mut self, view: &ViewGauges) {
        let number = view.version.version.to_string();
        for state in ViewState::ALL {
            let labels = [
                ("projection", &*view.version.projection),
                ("projection_version", number.as_str()),
                ("state", state.as_str()),
            ];
            self.add(VIEW_STATE, &labels, f64::from(u8::from(*state == view.state)));
        }
    }

    fn add_letters(&mut self, letters: &DeadLetterGauges, now: i64) {
        with_labels(&letters.version, &letters.partition, |labels| {
            #[expect(clippy::cast_precision_loss, reason = "a count of rows fits into 52 bits")]
            self.add(DEAD_LETTERS_OPEN, labels, letters.open as f64);
            let pending = u64::try_from(letters.open).unwrap_or(0);
            if let Some(age) = age_seconds(Some(pending), letters.oldest_millis, now) {
                self.add(DEAD_LETTERS_OLDEST_AGE, labels, age);
            }
        });
    }

    fn write(self, page: &mut String) {
        for (name, lines) in self.0 {
            let _ = write!(page, "# HELP {name} {}\n# TYPE {name} gauge\n{lines}\n", help(name));
        }
    }
}

fn with_labels(version: &VersionKey, partition: &TopicPartition, use_labels: impl FnOnce(&[(&str, &str)])) {
    let (number, index) = (version.version.to_string(), partition.partition.to_string());
    use_labels(&[
        ("projection", &version.projection),
        ("projection_version", &number),
        ("topic", &partition.topic),
        ("partition", &index),
    ]);
}

fn help(name: &str) -> &'static str {
    match name {
        DEAD_LETTERS_OPEN => "Dead letters that nobody has decided on.",
        DEAD_LETTERS_OLDEST_AGE => {
            "Age of the oldest dead letter that nobody has decided on; 0 where there is none."
        }
        PARTITION_LAG => "Readable end minus position: an upper bound of records that are not applied.",
        PARTITION_AGE => {
            "Age of the oldest event that is not applied; 0 when caught up, absent where it has no time."
        }
        PARTITION_STATE => "1 for the state that an owned partition is in.",
        VIEW_STATE => "1 for the state that the version's views are in, as the store knows it.",
        VIEW_STALE => "1 while an owned partition is older than the staleness limit.",
        VIEW_LIMIT => "The projection's staleness limit.",
        _ => "The program's version.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn version() -> VersionKey {
        VersionKey { projection: "orders".into(), version: 2 }
    }

    fn gauges(lag: Option<u64>, oldest: Option<i64>) -> PartitionGauges {
        PartitionGauges {
            lag_records: lag,
            oldest_pending_millis: oldest,
            state: PartitionState::Flowing,
            staleness: Duration::from_mins(2),
        }
    }

    fn page(reported: &[(i32, PartitionGauges)], at: Instant, since: Instant) -> String {
        let partitions = reported
            .iter()
            .map(|(number, gauges)| (TopicPartition::new("shop.orders", *number), (since, *gauges)))
            .collect();
        let mut page = String::new();
        write_owned(&mut page, &BTreeMap::from([(version(), partitions)]), at, &[], &[], NOW);
        page
    }

    #[test]
    fn caught_up_is_zero_however_old_the_last_record_is() {
        assert_eq!(age_seconds(Some(0), None, NOW), Some(0.0));
        assert_eq!(age_seconds(Some(0), Some(NOW - 7_200_000), NOW), Some(0.0));
    }

    #[test]
    fn age_is_that_of_the_oldest_pending_event_and_never_negative() {
        assert_eq!(age_seconds(Some(5), Some(NOW - 1500), NOW), Some(1.5));
        assert_eq!(age_seconds(Some(5), Some(NOW + 90_000), NOW), Some(0.0));
        assert_eq!(age_seconds(Some(5), Some(i64::MIN), NOW).map(|age| age > 0.0), Some(true));
    }

    #[test]
    fn age_is_unknown_where_the_pending_event_has_no_time() {
        assert_eq!(age_seconds(Some(5), None, NOW), None);
        assert_eq!(age_seconds(None, None, NOW), None);
    }

    #[test]
    fn unknown_lag_and_age_are_absent_series() {
        let at = Instant::now();
        let page = page(&[(0, gauges(None, None)), (1, gauges(Some(3), Some(NOW - 200_000)))], at, at);
        let labels = r#"projection="orders",projection_version="2",topic="shop.orders",partition="#;
        assert!(!page.contains(&format!("projector_partition_lag_records{{{labels}\"0\"")), "{page}");
        assert!(!page.contains(&format!("projector_partition_age_seconds{{{labels}\"0\"")), "{page}");
        for line in [
            format!("projector_partition_lag_records{{{labels}\"1\"}} 3\n"),
            format!("projector_partition_age_seconds{{{labels}\"1\"}} 200\n"),
            format!("projector_partition_state{{{labels}\"1\",state=\"flowing\"}} 1\n"),
            format!("projector_partition_state{{{labels}\"1\",state=\"quarantined\"}} 0\n"),
            "projector_view_stale{projection=\"orders\",projection_version=\"2\"} 1\n".to_owned(),
            "projector_view_staleness_limit_seconds{projection=\"orders\",projection_version=\"2\"} 120\n"
                .to_owned(),
        ] {
            assert!(page.contains(&line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn a_report_that_is_not_repeated_is_not_shown() {
        let since = Instant::now();
        let later = since + REPORT_LIMIT * 2;
        assert!(page(&[(0, gauges(Some(1), None))], since, since).contains(PARTITION_LAG));
        assert!(!page(&[(0, gauges(Some(1), None))], later, since).contains(PARTITION_LAG));
    }

    #[test]
    fn a_partition_that_is_gone_has_no_series() {
        let key = VersionKey { projection: "gone".into(), version: 1 };
        let (one, two) = (TopicPartition::new("t", 0), TopicPartition::new("t", 1));
        partition(&key, &one, &gauges(Some(1), None));
        partition(&key, &two, &gauges(Some(1), None));
        partition_gone(&key, &one);
        assert!(!is_owned(&key, &one) && is_owned(&key, &two));
        partition_gone(&key, &two);
        assert!(!owned_versions().contains(&key));
    }

    #[test]
    fn labels_are_escaped() {
        let mut families = Families::default();
        families.add(BUILD_INFO, &[("version", "a\"b\\c\nd")], 1.0);
        assert_eq!(families.0[BUILD_INFO], "projector_build_info{version=\"a\\\"b\\\\c\\nd\"} 1\n");
    }

    #[test]
    fn dead_letters_count_and_age() {
        let letters = DeadLetterGauges {
            version: version(),
            partition: TopicPartition::new("shop.orders", 0),
            open: 2,
            oldest_millis: Some(NOW - 60_000),
        };
        let mut page = String::new();
        write_owned(&mut page, &BTreeMap::new(), Instant::now(), &[], &[letters], NOW);
        assert!(page.contains(r#"partition="0"} 2"#) && page.contains(r#"partition="0"} 60"#), "{page}");
    }
}
