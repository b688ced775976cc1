//! Counters and histograms as typed functions, and the page that Prometheus reads.

#![allow(clippy::disallowed_macros, reason = "this is the one place where names and labels are given")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, counter, histogram};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use super::gauges::{self, DeadLetterGauges, ViewGauges};
use crate::fault::{Reason, Stage};
use crate::record::TopicPartition;
use crate::store::VersionKey;

const RECORDS: &str = "projector_records_total";
const EVENTS_IGNORED: &str = "projector_events_ignored_total";
const DEAD_LETTERS: &str = "projector_dead_letters_total";
const BATCH_RECORDS: &str = "projector_batch_records";
const APPLY_DURATION: &str = "projector_apply_duration_seconds";
const EVENT_TO_VISIBLE: &str = "projector_event_to_visible_seconds";
const FENCES_LOST: &str = "projector_fences_lost_total";
const UPDATES_MISSED: &str = "projector_updates_missed_total";
const RETRIES: &str = "projector_retries_total";

/// Every metric of this program. Stable: dashboards and alert rules rely on them.
pub const NAMES: [&str; 18] = [
    RECORDS,
    EVENTS_IGNORED,
    DEAD_LETTERS,
    gauges::DEAD_LETTERS_OPEN,
    gauges::DEAD_LETTERS_OLDEST_AGE,
    gauges::PARTITION_LAG,
    gauges::PARTITION_AGE,
    gauges::PARTITION_STATE,
    gauges::VIEW_STATE,
    gauges::VIEW_STALE,
    gauges::VIEW_LIMIT,
    BATCH_RECORDS,
    APPLY_DURATION,
    EVENT_TO_VISIBLE,
    FENCES_LOST,
    UPDATES_MISSED,
    RETRIES,
    gauges::BUILD_INFO,
];

/// Names of event types come from producers: beyond so many of a topic and version they count as `(other)`, so that a
/// producer cannot fill the memory or the monitoring (promise P9).
const MAX_EVENT_TYPES: usize = 100;
/// A longer type is counted as `(other)`.
const MAX_EVENT_TYPE_BYTES: usize = 128;
const OTHER: &str = "(other)";

/// Records that one transaction has taken a partition past, dead letters included.
pub fn records_applied(version: &VersionKey, partition: &TopicPartition, records: u64) {
    counter!(RECORDS, &partition_labels(version, partition)).increment(records);
}

/// An event for which the projection has no handler, by type. May be called for every record.
pub fn event_ignored(version: &VersionKey, topic: &Arc<str>, event_type: &str) {
    IGNORED.lock().unwrap_or_else(PoisonError::into_inner).count(version, topic, event_type);
}

/// A record that became a dead letter, once its transaction is durable.
pub fn dead_letter(version: &VersionKey, partition: &TopicPartition, stage: Stage, reason: Reason) {
    let mut labels = partition_labels(version, partition);
    labels.push(("stage", stage.as_str().to_owned()));
    labels.push(("reason", reason.as_str().to_owned()));
    counter!(DEAD_LETTERS, &labels).increment(1);
}

/// Records in one transaction, all its partitions together.
pub fn batch_records(version: &VersionKey, records: usize) {
    #[expect(clippy::cast_precision_loss, reason = "a batch has fewer than 2^52 records")]
    histogram!(BATCH_RECORDS, &version_labels(version)).record(records as f64);
}

/// How long one transaction took, from its first statement to the answer to COMMIT.
pub fn apply_duration(version: &VersionKey, took: Duration) {
    histogram!(APPLY_DURATION, &version_labels(version)).record(took);
}

/// From a record's own time to the commit that made it visible. Record it once for each partition of a transaction, for
/// its oldest record; not for records without a time.
pub fn event_to_visible(version: &VersionKey, took: Duration) {
    histogram!(EVENT_TO_VISIBLE, &version_labels(version)).record(took);
}

/// A transaction was refused because the partition is somebody else's now.
pub fn fence_lost(version: &VersionKey, partition: &TopicPartition) {
    counter!(FENCES_LOST, &partition_labels(version, partition)).increment(1);
}

/// Updates of one transaction that found no row, as folded: several of one row count once.
pub fn updates_missed(version: &VersionKey, updates: u64) {
    if updates > 0 {
        counter!(UPDATES_MISSED, &version_labels(version)).increment(updates);
    }
}

/// Why something is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    /// Something outside is not there right now; it passes by itself.
    Infrastructure,
    /// Somebody has to mend something.
    Operator,
}

impl RetryClass {
    /// The class's name in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Infrastructure => "infrastructure",
            Self::Operator => "operator",
        }
    }
}

/// What is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retried {
    /// A transaction.
    Apply,
    /// Taking over a partition.
    Claim,
    /// Writing the heartbeat and observations.
    Observe,
    /// Asking for a schema.
    Registry,
    /// Reaching a broker; counted once a second while the client reports trouble, and with each try to join.
    Broker,
    /// Publishing dead letters.
    Publish,
}

impl Retried {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Claim => "claim",
            Self::Observe => "observe",
            Self::Registry => "registry",
            Self::Broker => "broker",
            Self::Publish => "publish",
        }
    }
}

/// Something is tried again.
pub fn retry(version: &VersionKey, class: RetryClass, what: Retried) {
    let mut labels = version_labels(version);
    labels.push(("class", class.as_str().to_owned()));
    labels.push(("what", what.as_str().to_owned()));
    counter!(RETRIES, &labels).increment(1);
}

fn version_labels(version: &VersionKey) -> Vec<(&'static str, String)> {
    vec![("projection", version.projection.to_string()), ("projection_version", version.version.to_string())]
}

fn partition_labels(version: &VersionKey, partition: &TopicPartition) -> Vec<(&'static str, String)> {
    let mut labels = version_labels(version);
    labels.push(("topic", partition.topic.to_string()));
    labels.push(("partition", partition.partition.to_string()));
    labels
}

/// Counters of ignored types by version and topic, kept because this is counted record by record.
static IGNORED: Mutex<Ignored> = Mutex::new(Ignored(BTreeMap::new()));

struct Ignored(BTreeMap<(VersionKey, Arc<str>), BTreeMap<Box<str>, Counter>>);

impl Ignored {
    fn count(&mut self, version: &VersionKey, topic: &Arc<str>, event_type: &str) {
        let types = self.0.entry((version.clone(), topic.clone())).or_default();
        let is_new = !types.contains_key(event_type);
        let is_refused = event_type.len() > MAX_EVENT_TYPE_BYTES || types.len() >= MAX_EVENT_TYPES;
        let event_type = if is_new && is_refused { OTHER } else { event_type };
        if let Some(known) = types.get(event_type) {
            known.increment(1);
            return;
        }
        let mut labels = version_labels(version);
        labels.push(("topic", topic.to_string()));
        labels.push(("event_type", event_type.to_owned()));
        let counter = counter!(EVENTS_IGNORED, &labels);
        counter.increment(1);
        types.insert(event_type.into(), counter);
    }
}

/// Metrics could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("metrics are set up already; this is a mistake in the program")]
pub struct MetricsError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// The metrics of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    handle: PrometheusHandle,
}

impl Metrics {
    /// Collects counters and histograms of this process from now on. Whoever installs it calls [`Metrics::upkeep`] every
    /// few seconds (`http::serve` does); a process that serves no HTTP installs nothing, and counting then costs nothing.
    ///
    /// # Errors
    /// It has been called before.
    pub fn install() -> Result<Self, MetricsError> {
        let recorder = recorder().map_err(|error| MetricsError(Box::new(error)))?;
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|error| MetricsError(error.to_string().into()))?;
        Ok(Self { handle })
    }

    /// Moves samples of histograms into their buckets. Without it they would pile up while nobody scrapes.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// The page that Prometheus reads. Gauges of owned partitions come from what runners have reported; states of views and
    /// open dead letters from the caller, who has asked the store. `now` is in milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn render(&self, views: &[ViewGauges], letters: &[DeadLetterGauges], now: i64) -> String {
        let mut page = self.handle.render();
        gauges::write(&mut page, views, letters, now);
        page
    }
}

fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let seconds = [
        0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
    ];
    let records = [1.0, 10.0, 100.0, 1_000.0, 5_000.0, 10_000.0, 20_000.0, 50_000.0, 100_000.0, 200_000.0];
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(BATCH_RECORDS.into()), &records)?
        .set_buckets_for_metric(Matcher::Full(APPLY_DURATION.into()), &seconds)?
        .set_buckets_for_metric(Matcher::Full(EVENT_TO_VISIBLE.into()), &seconds)?
        .build_recorder();
    metrics::with_local_recorder(&recorder, describe);
    Ok(recorder)
}

fn describe() {
    use metrics::{describe_counter, describe_histogram};
    describe_counter!(RECORDS, "Records that transactions have taken partitions past.");
    describe_counter!(EVENTS_IGNORED, "Events without a handler, by type.");
    describe_counter!(DEAD_LETTERS, "Records that became dead letters.");
    describe_counter!(FENCES_LOST, "Transactions refused because another owner has the partition.");
    describe_counter!(UPDATES_MISSED, "Updates that found no row.");
    describe_counter!(RETRIES, "Repeated attempts, by class of the fault and what is tried again.");
    describe_histogram!(BATCH_RECORDS, "Records of one transaction.");
    describe_histogram!(APPLY_DURATION, "Duration of one transaction.");
    describe_histogram!(EVENT_TO_VISIBLE, "From a record's time to the commit that made it visible.");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str) -> VersionKey {
        VersionKey { projection: name.into(), version: 1 }
    }

    fn page_of(count: impl FnOnce()) -> String {
        let recorder = recorder().expect("buckets are not empty");
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, count);
        handle.render()
    }

    #[test]
    fn the_names_are_those_that_dashboards_rely_on() {
        let documented = "projector_records_total projector_events_ignored_total projector_dead_letters_total \
            projector_dead_letters_open projector_dead_letters_oldest_age_seconds projector_partition_lag_records \
            projector_partition_age_seconds projector_partition_state projector_view_state projector_view_stale \
            projector_view_staleness_limit_seconds projector_batch_records projector_apply_duration_seconds \
            projector_event_to_visible_seconds projector_fences_lost_total projector_updates_missed_total \
            projector_retries_total projector_build_info";
        assert_eq!(NAMES.to_vec(), documented.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn counters_and_histograms_carry_the_documented_labels() {
        let key = version("orders");
        let partition = TopicPartition::new("shop.orders", 3);
        let page = page_of(|| {
            records_applied(&key, &partition, 7);
            dead_letter(&key, &partition, Stage::Decode, Reason::BadFraming);
            fence_lost(&key, &partition);
            updates_missed(&key, 0);
            updates_missed(&key, 2);
            retry(&key, RetryClass::Operator, Retried::Registry);
            batch_records(&key, 7);
            apply_duration(&key, Duration::from_millis(3));
            event_to_visible(&key, Duration::from_millis(40));
        });
        for line in [
            r#"projector_records_total{projection="orders",projection_version="1",topic="shop.orders",partition="3"} 7"#,
            r#"projector_dead_letters_total{projection="orders",projection_version="1",topic="shop.orders",partition="3",stage="decode",reason="bad_framing"} 1"#,
            r#"projector_fences_lost_total{projection="orders",projection_version="1",topic="shop.orders",partition="3"} 1"#,
            r#"projector_updates_missed_total{projection="orders",projection_version="1"} 2"#,
            r#"projector_retries_total{projection="orders",projection_version="1",class="operator",what="registry"} 1"#,
            r#"projector_batch_records_bucket{projection="orders",projection_version="1",le="10"} 1"#,
            r#"projector_apply_duration_seconds_bucket{projection="orders",projection_version="1",le="0.005"} 1"#,
            r#"projector_event_to_visible_seconds_count{projection="orders",projection_version="1"} 1"#,
        ] {
            assert!(page.contains(line), "{line}\nis not in\n{page}");
        }
    }

    #[test]
    fn a_producer_cannot_make_more_than_a_bounded_number_of_series() {
        let key = version("many_types");
        let topic: Arc<str> = "t".into();
        let page = page_of(|| {
            for number in 0..1000 {
                event_ignored(&key, &topic, &format!("Type{number}"));
            }
            event_ignored(&key, &topic, &"x".repeat(10_000));
        });
        let series = page.lines().filter(|line| line.starts_with("projector_events_ignored_total{")).count();
        assert_eq!(series, MAX_EVENT_TYPES + 1);
        assert!(page.contains(r#"event_type="(other)"} 901"#), "{page}");
    }
}
