//! Projections at work, whoever runs them: `projector run`, the demo, or a program that brings projections of its own
//! written in Rust.
//!
//! [`Service::prepare`] is everything before joining: wait for the store and the brokers, lay out, register. What is wrong
//! then ends the process. [`Service::run`] joins and applies until it is told to stop; what goes wrong then is waited for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::dead_letter_topics::{self, DeadLetterLoop};
use super::publish::{self, DeadLetterTopic};
use super::tally::Totals;
use super::waiting::waiting;
use super::{Budget, Shared, VersionParts, supervisor};
use crate::config::settings::LimitSettings;
use crate::decode::registry::Schemas;
use crate::decode::{Decoder, DecoderError};
use crate::position::NextOffset;
use crate::projection::{Declaration, Projection, Start};
use crate::record::TopicPartition;
use crate::source::{Cluster, SourceError, TopicDescription};
use crate::store::{
    InstanceId, LogIdentity, PartitionStart, PartitionStatus, Quarantine, Registered, Registration,
    SharedStore, StoreError, VersionKey, VersionState,
};
use crate::telemetry::Health;

/// What is left of the grace for the heartbeat's row and the connections.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why a service could not be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The store refuses, or holds something else than what is declared.
    #[error("cannot prepare the read store")]
    Store(#[source] StoreError),
    /// The store does not register a version.
    #[error("cannot register {version}{}", .file.as_ref().map(|file| format!(" of {}", file.display())).unwrap_or_default())]
    Register {
        /// The version.
        version: String,
        /// The file that declares it, where there is one.
        file: Option<PathBuf>,
        /// Why not.
        #[source]
        source: StoreError,
    },
    /// Kafka refuses, or a topic is missing.
    #[error("cannot prepare the topics")]
    Kafka(#[source] SourceError),
    /// A source cannot be decoded as it is declared.
    #[error("cannot prepare decoding for {version}")]
    Decoder {
        /// The version.
        version: String,
        /// What is wrong.
        #[source]
        source: DecoderError,
    },
    /// The dead-letter topic does not exist.
    #[error(
        "the dead-letter topic {topic} does not exist; create it, or set `dead_letter: {{ topic: none }}` to keep dead \
         letters in their table only"
    )]
    MissingDeadLetterTopic {
        /// The topic.
        topic: String,
    },
    /// The dead-letter topic is a source.
    #[error("{}; {}", .0, .0.fix())]
    DeadLetterLoop(DeadLetterLoop),
    /// It was told to stop while it waited.
    #[error("told to stop while waiting for {0}")]
    Stopped(&'static str),
}

/// What a service needs from outside.
pub struct Outside {
    /// The store.
    pub store: SharedStore,
    /// The cluster.
    pub cluster: Arc<dyn Cluster>,
    /// Schemas of the registry.
    pub schemas: Schemas,
    /// Where dead letters are sent, for each projection that publishes them.
    pub dead_letter_topics: BTreeMap<String, Arc<dyn DeadLetterTopic>>,
    /// The readiness that is told to the platform.
    pub health: Health,
}

/// How a service works.
#[derive(Debug, Clone)]
pub struct Ways {
    /// Consumer groups are `<group_prefix>.<projection>.v<version>`.
    pub group_prefix: String,
    /// Transactions at a time.
    pub writers: usize,
    /// Bounds.
    pub limits: LimitSettings,
    /// For how long an unknown schema id is asked for.
    pub unknown_schema_wait: Duration,
    /// Unpublished dead letters of a partition before it is blocked.
    pub max_waiting: u32,
    /// How long a shutdown may take.
    pub grace: Duration,
}

/// Projections that are registered and ready to run.
pub struct Service {
    shared: Arc<Shared>,
    cluster: Arc<dyn Cluster>,
    versions: Vec<Arc<VersionParts>>,
    dead_letter_topics: BTreeMap<String, Arc<dyn DeadLetterTopic>>,
    /// The log as it was when the service was prepared.
    logs: BTreeMap<(String, TopicPartition), LogSeen>,
}

/// What the broker said of one partition.
#[derive(Debug, Clone)]
struct LogSeen {
    topic_id: Option<String>,
    end: NextOffset,
}

impl LogSeen {
    /// Whether a position has reached the end. One of another log has not; one behind the end has if its owner can read
    /// so far: another instance may have gone on meanwhile, or the log may have been cut.
    fn is_reached(&self, row: &PartitionStatus) -> bool {
        let is_other =
            matches!((&self.topic_id, &row.topic_id), (Some(seen), Some(of_row)) if seen != of_row);
        !is_other
            && (row.position == self.end
                || row.position > self.end && row.readable_end.is_some_and(|end| end >= row.position))
    }
}

impl Service {
    /// Everything before joining: waits for the store and the brokers, lays out the tables, and registers the versions.
    ///
    /// # Errors
    /// What is wrong before joining ends the process: refused credentials, missing topics, a changed mapping, tables that
    /// differ. Outages are waited for until `stop` is cancelled.
    pub async fn prepare(
        outside: Outside,
        ways: &Ways,
        projections: Vec<Arc<dyn Projection>>,
        stop: &CancellationToken,
    ) -> Result<Self, PrepareError> {
        let store = outside.store;
        let declarations: Vec<Arc<Declaration>> =
            projections.iter().map(|projection| Arc::new(projection.declaration().clone())).collect();
        waiting(stop, "the read store", || store.verify(&declarations)).await?;
        waiting(stop, "the read store", || store.lay_out()).await?;
        outside.health.laid_out();
        let cluster_id = waiting(stop, "kafka", || outside.cluster.cluster_id()).await?;
        dead_letter_topics::refuse_loops(&projections, &outside.dead_letter_topics)?;
        dead_letter_topics::look(&outside.cluster, &outside.dead_letter_topics, stop).await?;
        let mut versions = Vec::new();
        let mut logs = BTreeMap::new();
        for (projection, declaration) in projections.into_iter().zip(declarations) {
            let group = format!("{}.{}.v{}", ways.group_prefix, declaration.name, declaration.version);
            let mut decoders = Vec::with_capacity(declaration.sources.len());
            for source in &declaration.sources {
                let decoder = Decoder::new(source, outside.schemas.clone(), ways.limits.record)
                    .map_err(|source| PrepareError::Decoder { version: declaration.label(), source })?;
                decoders.push(decoder);
            }
            let topics: Vec<String> = declaration.sources.iter().map(|source| source.topic.clone()).collect();
            let described = waiting(stop, "kafka", || outside.cluster.describe(&topics)).await?;
            let partitions = starts(&declaration, &described);
            for start in &partitions {
                let seen = LogSeen { topic_id: start.topic_id.clone(), end: start.boundary };
                logs.insert((declaration.name.clone(), start.partition.clone()), seen);
            }
            let log = LogIdentity { cluster_id: cluster_id.clone(), consumer_group: group.clone() };
            let registration = Registration { declaration: declaration.clone(), log, partitions };
            let registered = waiting(stop, "the read store", || store.register(&registration)).await;
            let registered = registered.map_err(|error| match error {
                PrepareError::Store(source) => PrepareError::Register {
                    version: declaration.label(),
                    file: projection.file().map(Path::to_owned),
                    source,
                },
                error => error,
            })?;
            if registered == Registered::New {
                tracing::info!(version = declaration.label(), group, "registered");
            }
            versions.push(Arc::new(VersionParts::new(projection, group, outside.schemas.clone(), decoders)));
        }
        let shared = Shared {
            store,
            instance: InstanceId(uuid::Uuid::new_v4().to_string().into()),
            host: host_name(),
            writers: Arc::new(Semaphore::new(ways.writers)),
            lanes: ways.writers,
            budget: Budget::new(ways.limits.memory, versions.len()),
            batch_records: ways.limits.batch_records,
            partition_bytes: (ways.limits.memory / 16).max(256 * 1024),
            unknown_schema_wait: ways.unknown_schema_wait,
            max_waiting: ways.max_waiting,
            grace: ways.grace,
            health: outside.health,
        };
        let dead_letter_topics = outside.dead_letter_topics;
        Ok(Self { shared: Arc::new(shared), cluster: outside.cluster, versions, dead_letter_topics, logs })
    }

    /// The versions that are served.
    pub fn versions(&self) -> impl Iterator<Item = &VersionKey> {
        self.versions.iter().map(|parts| &parts.version)
    }

    /// What has been done with records since the service was prepared.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.versions.iter().map(|parts| parts.tally.totals()).fold(Totals::default(), std::ops::Add::add)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> SharedStore {
        self.shared.store.clone()
    }

    /// Joins the groups and applies events until `stop` is cancelled, or every version has been retired.
    pub async fn run(&self, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        for parts in &self.versions {
            let (shared, cluster) = (self.shared.clone(), self.cluster.clone());
            tasks.spawn(supervisor::keep_running(shared, parts.clone(), cluster, stop.clone()));
        }
        let stop_publishing = CancellationToken::new();
        let mut publishers = JoinSet::new();
        for parts in &self.versions {
            if let Some(topic) = self.dead_letter_topics.get(&parts.declaration.name) {
                let store = self.shared.store.clone();
                publishers.spawn(publish::run(
                    store,
                    parts.clone(),
                    topic.clone(),
                    self.shared.max_waiting,
                    stop_publishing.clone(),
                ));
            }
        }
        let mut stopped_at = None;
        loop {
            tokio::select! {
                () = stop.cancelled(), if stopped_at.is_none() => stopped_at = Some(Instant::now()),
                ended = tasks.join_next() => if ended.is_none() { break },
            }
        }
        stop_publishing.cancel();
        // What is not acknowledged by then goes again after the next start.
        let now = Instant::now();
        let last_moment = stopped_at.unwrap_or(now) + self.shared.grace;
        let all_published = async { while publishers.join_next().await.is_some() {} };
        if tokio::time::timeout_at(last_moment - LAST_WORDS, all_published).await.is_err() {
            tracing::warn!(
                "some dead letters are not published yet; they are when the version is served again"
            );
        }
        let sign_off = async {
            if let Err(error) = self.shared.store.sign_off(&self.shared.instance).await {
                tracing::info!(%error, "signing off failed; the heartbeat runs out by itself");
            }
            self.shared.store.close().await;
        };
        if tokio::time::timeout_at(last_moment.max(now + LAST_WORDS), sign_off).await.is_err() {
            tracing::info!("the read store did not answer in time; the heartbeat runs out by itself");
        }
    }

    /// How far the store's positions of all partitions, whoever owns them, are on the way to the readable ends seen when the
    /// service was prepared.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn catch_up(&self) -> Result<CatchUp, StoreError> {
        let rows = self.shared.store.status(None).await?;
        let mut far = CatchUp { partitions: self.logs.len(), ..CatchUp::default() };
        for ((projection, partition), log) in &self.logs {
            let is_row = |row: &&PartitionStatus| {
                row.version.projection.as_ref() == projection.as_str()
                    && row.partition == *partition
                    && row.version_state != VersionState::Retired
            };
            let row = rows.iter().find(is_row);
            far.remaining_records += row.map_or(0, |row| row.position.lag_to(log.end));
            let is_reached = row.is_some_and(|row| log.is_reached(row));
            if !row.is_some_and(|row| is_reached && row.version_state == VersionState::Live) {
                far.partitions_behind += 1;
            }
            // A request is carried out by whoever claims the partition: that may be this process in a moment.
            let stopped = row.filter(|row| !row.is_resume_requested);
            match stopped.and_then(|row| Some((row, row.quarantine.as_ref()?))) {
                Some((row, why)) => {
                    far.quarantined.push((row.version.clone(), partition.clone(), why.clone()));
                }
                None if !is_reached => far.on_their_way += 1,
                None => {}
            }
        }
        // Partitions of the store that their topics no longer have.
        for row in rows.iter().filter(|row| self.versions().any(|version| *version == row.version)) {
            let is_known =
                self.logs.contains_key(&(row.version.projection.to_string(), row.partition.clone()));
            if let Some(why) = row.quarantine.as_ref().filter(|_| !is_known) {
                far.quarantined.push((row.version.clone(), row.partition.clone(), why.clone()));
            }
        }
        for parts in &self.versions {
            let is_live = rows
                .iter()
                .any(|row| row.version == parts.version && row.version_state == VersionState::Live);
            match parts.not_live() {
                _ if is_live => {}
                Some(why) => far.not_live.push((parts.version.clone(), why)),
                None => far.soon_live += 1,
            }
        }
        Ok(far)
    }
}

/// How far a service is on its way to the ends seen when it was prepared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatchUp {
    /// Offsets that are not applied yet, all partitions together.
    pub remaining_records: u64,
    /// Partitions that have not reached their end, or whose version is not live.
    pub partitions_behind: usize,
    /// All partitions.
    pub partitions: usize,
    /// Partitions that will not reach their end until a command decides.
    pub quarantined: Vec<(VersionKey, TopicPartition, Quarantine)>,
    /// Partitions that are behind and not quarantined.
    pub on_their_way: usize,
    /// Versions that have reached their boundary and cannot go live before somebody has mended something.
    pub not_live: Vec<(VersionKey, String)>,
    /// Versions that are not live for no such reason.
    pub soon_live: usize,
}

impl CatchUp {
    /// Whether nothing is left to wait for but quarantined partitions.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        !self.quarantined.is_empty() && self.on_their_way == 0
    }

    /// Whether nothing is left to wait for but somebody who lets the versions go live.
    #[must_use]
    pub fn waits_for_views(&self) -> bool {
        !self.not_live.is_empty() && self.on_their_way == 0 && self.soon_live == 0
    }
}

/// Start and boundary of every partition of a declaration's sources.
fn starts(declaration: &Declaration, described: &BTreeMap<String, TopicDescription>) -> Vec<PartitionStart> {
    let mut starts = Vec::new();
    for source in &declaration.sources {
        let Some(topic) = described.get(&source.topic) else { continue };
        for (number, (first, end)) in &topic.partitions {
            starts.push(PartitionStart {
                partition: TopicPartition::new(source.topic.as_str(), *number),
                topic_id: topic.topic_id.clone(),
                start: match source.start {
                    Start::Earliest => *first,
                    Start::Latest => *end,
                },
                boundary: *end,
            });
        }
    }
    starts
}

/// The host's name, for people who look at `projector_instances`.
fn host_name() -> String {
    std::env::var("HOSTNAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned())
}
