//! Status as objects that are stable in JSON: of the command line, and of HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::lag::{age, is_observed, lag_records};
use super::rules::{Judgement, judge, partition_state};
use crate::projection::Declaration;
use crate::store::{PartitionStatus, VersionKey, VersionState};
use crate::telemetry::{PartitionState, ViewState};

/// What declarations say and the positions in the store don't: names of views, and staleness limits.
#[derive(Debug, Clone, Default)]
pub struct Catalogue(BTreeMap<VersionKey, Entry>);

#[derive(Debug, Clone)]
struct Entry {
    views: Vec<String>,
    staleness: Duration,
}

impl Catalogue {
    /// A catalogue of these declarations.
    pub fn of<'a>(declarations: impl IntoIterator<Item = &'a Declaration>) -> Self {
        let mut catalogue = Self::default();
        for declaration in declarations {
            let views = declaration.views.iter().map(|view| view.name.clone()).collect();
            catalogue.add(key(&declaration.name, declaration.version), views, declaration.staleness);
        }
        catalogue
    }

    /// Adds a version.
    pub fn add(&mut self, version: VersionKey, views: Vec<String>, staleness: Duration) {
        self.0.insert(version, Entry { views, staleness });
    }
}

fn key(projection: &str, version: u32) -> VersionKey {
    VersionKey { projection: Arc::from(projection), version }
}

/// All projections of a store at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reports {
    /// The projections by name.
    pub projections: Vec<ProjectionReport>,
}

/// One projection: `GET /api/v1/projections/{name}`, and an item of `projector status --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProjectionReport {
    /// Its name.
    pub projection: String,
    /// Its versions by number.
    pub versions: Vec<VersionReport>,
}

/// One version of a projection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VersionReport {
    /// Its number.
    pub version: u32,
    /// `building`, `caught_up`, `live` or `retired`.
    pub version_state: &'static str,
    /// The state of its views.
    pub state: ViewState,
    /// Why; null where there is nothing to say.
    pub reason: Option<String>,
    /// Readable ends minus positions; null while an end is unknown.
    pub lag_records: Option<u64>,
    /// Age of the oldest event that is not applied; null where it is unknown.
    pub age_seconds: Option<f64>,
    /// The staleness limit; null where the projection's file is not at hand.
    pub staleness_limit_seconds: Option<f64>,
    /// Dead letters that nobody has decided on.
    pub open_dead_letters: i64,
    /// When this was true, RFC 3339.
    pub as_of: String,
    /// Names of its views; empty where the projection's file is not at hand.
    pub views: Vec<String>,
    /// Its partitions by topic and number.
    pub partitions: Vec<PartitionReport>,
}

/// One view: `GET /api/v1/views/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ViewReport {
    /// Its name.
    pub view: String,
    /// The projection that it belongs to.
    pub projection: String,
    /// The version that stands behind it, or will.
    pub version: u32,
    /// `ready`, `catching_up`, `unavailable` or `quarantined`.
    pub state: ViewState,
    /// Why; null where there is nothing to say.
    pub reason: Option<String>,
    /// As in [`VersionReport`].
    pub lag_records: Option<u64>,
    /// As in [`VersionReport`].
    pub age_seconds: Option<f64>,
    /// The staleness limit.
    pub staleness_limit_seconds: Option<f64>,
    /// As in [`VersionReport`].
    pub open_dead_letters: i64,
    /// When this was true, RFC 3339.
    pub as_of: String,
}

/// One partition of a version.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartitionReport {
    /// The topic.
    pub topic: String,
    /// The number.
    pub partition: i32,
    /// `flowing`, `blocked`, `quarantined` or `unowned`.
    pub state: PartitionState,
    /// Why it is blocked or quarantined.
    pub reason: Option<String>,
    /// The numbers of a quarantine.
    pub detail: Option<String>,
    /// The command that decides, for a quarantine.
    pub decide: Option<String>,
    /// The next offset to read.
    pub position: i64,
    /// The readable end, as last observed.
    pub readable_end: Option<i64>,
    /// Where the version counts as caught up.
    pub boundary: i64,
    /// Readable end minus position.
    pub lag_records: Option<u64>,
    /// Age of the oldest event that is not applied.
    pub age_seconds: Option<f64>,
    /// Whether an owner's heartbeat is fresh.
    pub owner_alive: bool,
    /// Seconds since the last observation.
    pub observed_seconds_ago: Option<f64>,
    /// The owner's number.
    pub epoch: i64,
    /// Transactions so far.
    pub revision: i64,
    /// Dead letters that nobody has decided on.
    pub open_dead_letters: i64,
}

impl Reports {
    /// Judges what the store gave. `now` is in milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn of(partitions: &[PartitionStatus], catalogue: &Catalogue, now: i64) -> Self {
        let mut by_version: BTreeMap<&VersionKey, Vec<&PartitionStatus>> = BTreeMap::new();
        for partition in partitions {
            by_version.entry(&partition.version).or_default().push(partition);
        }
        let mut projections: Vec<ProjectionReport> = Vec::new();
        for (key, mut partitions) in by_version {
            partitions.sort_unstable_by(|a, b| a.partition.cmp(&b.partition));
            let version = VersionReport::of(key, &partitions, catalogue.0.get(key), now);
            match projections.last_mut().filter(|last| last.projection == *key.projection) {
                Some(projection) => projection.versions.push(version),
                None => projections.push(ProjectionReport {
                    projection: key.projection.to_string(),
                    versions: vec![version],
                }),
            }
        }
        Self { projections }
    }

    /// The projection with this name.
    #[must_use]
    pub fn projection(&self, name: &str) -> Option<&ProjectionReport> {
        self.projections.iter().find(|projection| projection.projection == name)
    }

    /// The view with this name: of its live version, or of the newest while none is live.
    #[must_use]
    pub fn view(&self, name: &str) -> Option<ViewReport> {
        self.projections.iter().find_map(|projection| {
            let with_view =
                projection.versions.iter().filter(|version| version.views.iter().any(|view| view == name));
            let version = with_view.max_by_key(|version| {
                (version.version_state == VersionState::Live.as_str(), version.version)
            })?;
            Some(version.view(&projection.projection, name))
        })
    }
}

impl VersionReport {
    fn of(key: &VersionKey, partitions: &[&PartitionStatus], entry: Option<&Entry>, now: i64) -> Self {
        let limit = entry.map(|entry| entry.staleness);
        let Judgement { state, reason, lag_records, age_seconds, open_dead_letters } =
            judge(partitions, limit, now);
        let version_state = partitions.first().map_or(VersionState::Building, |first| first.version_state);
        Self {
            version: key.version,
            version_state: version_state.as_str(),
            state,
            reason,
            lag_records,
            age_seconds,
            staleness_limit_seconds: limit.map(|limit| limit.as_secs_f64()),
            open_dead_letters,
            as_of: time_of_millis(now),
            views: entry.map(|entry| entry.views.clone()).unwrap_or_default(),
            partitions: partitions.iter().map(|partition| PartitionReport::of(partition, now)).collect(),
        }
    }

    fn view(&self, projection: &str, view: &str) -> ViewReport {
        ViewReport {
            view: view.to_owned(),
            projection: projection.to_owned(),
            version: self.version,
            state: self.state,
            reason: self.reason.clone(),
            lag_records: self.lag_records,
            age_seconds: self.age_seconds,
            staleness_limit_seconds: self.staleness_limit_seconds,
            open_dead_letters: self.open_dead_letters,
            as_of: self.as_of.clone(),
        }
    }
}

impl PartitionReport {
    fn of(status: &PartitionStatus, now: i64) -> Self {
        let state = partition_state(status);
        let quarantine = status.quarantine.as_ref();
        Self {
            topic: status.partition.topic.to_string(),
            partition: status.partition.partition,
            state,
            reason: quarantine
                .map(|quarantine| quarantine.reason.clone())
                .or_else(|| status.blocked.clone().filter(|_| is_observed(status))),
            detail: quarantine.map(|quarantine| quarantine.detail.clone()),
            decide: quarantine.map(|why| why.decided_by(&status.version, &status.partition)),
            position: status.position.get(),
            readable_end: status.readable_end.map(crate::position::NextOffset::get),
            boundary: status.boundary.get(),
            lag_records: lag_records(status),
            age_seconds: age(status, now),
            owner_alive: status.owner_alive,
            // The store reads its clock once for a transaction: one that began earlier sees the observation in its future.
            observed_seconds_ago: status.observed_seconds_ago.map(|seconds| seconds.max(0.0)),
            epoch: status.epoch.get(),
            revision: status.revision,
            open_dead_letters: status.open_dead_letters,
        }
    }
}

/// Milliseconds since 1970-01-01 UTC as RFC 3339.
#[must_use]
pub fn time_of_millis(millis: i64) -> String {
    Timestamp::from_millisecond(millis).map_or_else(|_| format!("{millis} ms"), |time| time.to_string())
}

/// The time of this machine: milliseconds since 1970-01-01 UTC.
#[must_use]
pub fn now_millis() -> i64 {
    Timestamp::now().as_millisecond()
}

#[cfg(test)]
mod tests {
    use super::super::lag::tests::{NOW, caught_up};
    use super::*;
    use crate::store::Quarantine;

    fn catalogue() -> Catalogue {
        let mut catalogue = Catalogue::default();
        for version in [1, 2] {
            catalogue.add(key("catalogue", version), vec!["products".into()], Duration::from_mins(2));
        }
        catalogue
    }

    #[test]
    fn a_view_is_that_of_the_live_version() {
        let newer = PartitionStatus {
            version: key("catalogue", 2),
            version_state: VersionState::Building,
            ..caught_up(0)
        };
        let reports = Reports::of(&[newer, caught_up(0)], &catalogue(), NOW);
        let view = reports.view("products").expect("declared");
        assert_eq!((view.version, view.state), (1, ViewState::Ready));
        assert_eq!(reports.projections[0].versions.len(), 2);
        assert!(reports.view("nothing").is_none() && reports.projection("nothing").is_none());
    }

    #[test]
    fn json_is_as_documented() {
        let stopped = PartitionStatus {
            quarantine: Some(Quarantine { reason: "bug".into(), detail: "see the log".into() }),
            ..caught_up(1)
        };
        let reports = Reports::of(&[stopped], &catalogue(), NOW);
        insta::assert_snapshot!(serde_json::to_string_pretty(&reports.projections[0]).expect("plain"), @r#"
        {
          "projection": "catalogue",
          "versions": [
            {
              "version": 1,
              "version_state": "live",
              "state": "quarantined",
              "reason": "partition shop.products:1 is quarantined: bug",
              "lag_records": 0,
              "age_seconds": 0.0,
              "staleness_limit_seconds": 120.0,
              "open_dead_letters": 0,
              "as_of": "2027-01-15T08:00:00Z",
              "views": [
                "products"
              ],
              "partitions": [
                {
                  "topic": "shop.products",
                  "partition": 1,
                  "state": "quarantined",
                  "reason": "bug",
                  "detail": "see the log",
                  "decide": "projector resume catalogue --partition shop.products:1 [--dead-letter]",
                  "position": 100,
                  "readable_end": 100,
                  "boundary": 80,
                  "lag_records": 0,
                  "age_seconds": 0.0,
                  "owner_alive": true,
                  "observed_seconds_ago": 0.4,
                  "epoch": 3,
                  "revision": 12,
                  "open_dead_letters": 0
                }
              ]
            }
          ]
        }
        "#);
        insta::assert_snapshot!(serde_json::to_string(&reports.view("products")).expect("plain"), @r#"{"view":"products","projection":"catalogue","version":1,"state":"quarantined","reason":"partition shop.products:1 is quarantined: bug","lag_records":0,"age_seconds":0.0,"staleness_limit_seconds":120.0,"open_dead_letters":0,"as_of":"2027-01-15T08:00:00Z"}"#);
    }

    #[test]
    fn a_fault_of_the_log_is_decided_by_the_command_that_can() {
        for (reason, command) in [
            ("value_too_long", "projector resume catalogue --partition shop.products:1 [--dead-letter]"),
            (Quarantine::LOG_EXPIRED, "projector retire catalogue@1 --execute"),
            (Quarantine::LOG_TRUNCATED, "projector retire catalogue@1 --execute"),
            (Quarantine::TOPIC_RECREATED, "projector retire catalogue@1 --execute"),
        ] {
            let why = Quarantine { reason: reason.into(), detail: String::new() };
            let status = PartitionStatus { quarantine: Some(why), ..caught_up(1) };
            assert_eq!(PartitionReport::of(&status, NOW).decide.as_deref(), Some(command), "{reason}");
        }
    }

    #[test]
    fn an_observation_is_never_in_the_future() {
        let status = PartitionStatus { observed_seconds_ago: Some(-0.0014), ..caught_up(0) };
        assert_eq!(PartitionReport::of(&status, NOW).observed_seconds_ago, Some(0.0));
    }

    #[test]
    fn a_version_without_its_file_is_shown_without_views_and_limit() {
        let reports = Reports::of(&[caught_up(0)], &Catalogue::default(), NOW);
        let version = &reports.projections[0].versions[0];
        assert_eq!((version.staleness_limit_seconds, version.views.len()), (None, 0));
        assert_eq!(version.state, ViewState::Ready);
    }
}
