//! BATCH → APPLY → COMMIT: one runner a version, and what the runners of a process share.
//!
//! - [`service`]: projections prepared and run; what a program sees of all this.
//! - [`dead_letter_topics`], [`waiting`]: what has to be right, and there, before it joins.
//! - [`supervisor`]: keeps a runner going for each version, with a new client where the old one broke.
//! - [`runner`]: the loop of one version.
//! - [`partition`]: the state of one partition.
//! - [`batch`]: records read and folded.
//! - [`writer`]: a lane's transaction, and the search for what the store refuses.
//! - [`missing`]: partitions that their topic no longer has.
//! - [`publish`]: dead letters on their way to their topic.
//! - [`tally`]: what was done, for the log and the last words.
//! - [`retry`]: the only place that classifies errors.
//! - [`recurring`]: which of many failures is worth a line in the log.

pub mod batch;
pub mod dead_letter_topics;
pub mod missing;
pub mod partition;
pub mod publish;
pub mod recurring;
pub mod retry;
pub mod runner;
pub mod service;
pub mod supervisor;
pub mod tally;
mod waiting;
pub mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore};

use self::tally::Tally;
use crate::decode::Decoder;
use crate::decode::registry::Schemas;
use crate::projection::{Declaration, Projection};
use crate::record::TopicPartition;
use crate::source::{Cluster, SourceError};
use crate::store::{InstanceId, SharedStore, VersionKey};
use crate::telemetry::Health;
use batch::Reader;

/// What all runners of a process share.
pub struct Shared {
    /// The store.
    pub store: SharedStore,
    /// This process.
    pub instance: InstanceId,
    /// The host's name, for people.
    pub host: String,
    /// One permit for each writer; fair, so that versions take turns.
    pub writers: Arc<Semaphore>,
    /// Lanes of each version: as many as there are writers.
    pub lanes: usize,
    /// Bytes of records and changes that the process may hold.
    pub budget: Budget,
    /// The most records of one partition in one transaction.
    pub batch_records: usize,
    /// Bytes that a partition holds at most while it waits for a fault outside to pass.
    pub partition_bytes: usize,
    /// How long an unknown schema id is asked for before its records are dead letters.
    pub unknown_schema_wait: Duration,
    /// Unpublished dead letters of a partition before it is blocked.
    pub max_waiting: u32,
    /// How long a shutdown may take.
    pub grace: Duration,
    /// What the process tells its platform: joined, alive.
    pub health: Health,
}

/// Bytes that the process may hold, counted by the runners (promise P9).
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    /// What every runner may hold even when the others hold everything, so that none starves.
    share: usize,
    held: AtomicUsize,
    freed: Notify,
}

impl Budget {
    /// A budget of `limit` bytes for `runners` runners.
    #[must_use]
    pub fn new(limit: usize, runners: usize) -> Self {
        Self { limit, share: limit / (4 * runners.max(1)), held: AtomicUsize::new(0), freed: Notify::new() }
    }

    /// Whether a runner that holds `own` bytes may read more.
    #[must_use]
    pub fn has_room(&self, own: usize) -> bool {
        own < self.share || self.held.load(Ordering::Relaxed) < self.limit
    }

    /// A runner holds `after` bytes instead of `before`.
    pub fn change(&self, before: usize, after: usize) {
        if after >= before {
            self.held.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.held.fetch_sub(before - after, Ordering::Relaxed);
            self.freed.notify_waiters();
        }
    }

    /// Waits until some runner has freed bytes.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }
}

/// What belongs to one version for as long as the process serves it.
pub struct VersionParts {
    /// The version.
    pub version: VersionKey,
    /// Its declaration.
    pub declaration: Arc<Declaration>,
    /// Its consumer group.
    pub group: String,
    /// The schemas that its decoders share.
    pub schemas: Schemas,
    projection: Arc<dyn Projection>,
    decoders: Arc<[Decoder]>,
    topic_ids: RwLock<BTreeMap<String, String>>,
    asked_at: tokio::sync::Mutex<Option<Instant>>,
    owned: RwLock<BTreeSet<TopicPartition>>,
    /// Partitions with more unpublished dead letters than may wait.
    backlogged: RwLock<BTreeSet<TopicPartition>>,
    /// Why the version, which has reached its boundary, cannot go live.
    not_live: RwLock<Option<String>>,
    publish: Notify,
    /// What this process has done with the version's records.
    pub tally: Arc<Tally>,
}

impl VersionParts {
    /// The parts of a version. `decoders` in the order of the declaration's sources.
    #[must_use]
    pub fn new(
        projection: Arc<dyn Projection>,
        group: String,
        schemas: Schemas,
        decoders: Vec<Decoder>,
    ) -> Self {
        let declaration = Arc::new(projection.declaration().clone());
        Self {
            version: VersionKey {
                projection: declaration.name.as_str().into(),
                version: declaration.version,
            },
            declaration,
            group,
            schemas,
            projection,
            decoders: decoders.into(),
            topic_ids: RwLock::default(),
            asked_at: tokio::sync::Mutex::default(),
            owned: RwLock::default(),
            backlogged: RwLock::default(),
            not_live: RwLock::default(),
            publish: Notify::new(),
            tally: Arc::default(),
        }
    }

    /// A reader of its own for a runner.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(self.projection.clone(), self.version.clone(), self.decoders.clone(), self.tally.clone())
    }

    /// The id that a topic had when the cluster was last asked.
    #[must_use]
    pub fn topic_id(&self, topic: &str) -> Option<String> {
        self.topic_ids.read().ok()?.get(topic).cloned()
    }

    /// The topics that the version reads.
    #[must_use]
    pub fn topics(&self) -> Vec<String> {
        self.declaration.sources.iter().map(|source| source.topic.clone()).collect()
    }

    /// Asks the cluster for the topics' ids, unless that was done within the last second: many partitions are claimed at
    /// a time.
    pub async fn refresh_topic_ids(&self, cluster: &dyn Cluster) -> Result<(), SourceError> {
        const FRESH: Duration = Duration::from_secs(1);
        let mut asked_at = self.asked_at.lock().await;
        if asked_at.is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(());
        }
        let described = cluster.describe(&self.topics()).await?;
        let ids = described.into_iter().filter_map(|(topic, about)| Some((topic, about.topic_id?))).collect();
        if let Ok(mut known) = self.topic_ids.write() {
            *known = ids;
        }
        *asked_at = Some(Instant::now());
        Ok(())
    }

    /// A partition has become this member's, or is no longer.
    pub fn owned(&self, partition: &TopicPartition, is_owned: bool) {
        if let Ok(mut owned) = self.owned.write() {
            if is_owned {
                owned.insert(partition.clone());
            } else {
                owned.remove(partition);
            }
        }
    }

    /// The partitions that this member owns.
    #[must_use]
    pub fn owned_partitions(&self) -> Vec<TopicPartition> {
        self.owned.read().map(|owned| owned.iter().cloned().collect()).unwrap_or_default()
    }

    /// The partitions whose dead letters have waited too long for their topic.
    #[must_use]
    pub fn backlogged(&self) -> BTreeSet<TopicPartition> {
        self.backlogged.read().map(|backlogged| backlogged.clone()).unwrap_or_default()
    }

    /// Says which those are from now on.
    pub fn set_backlogged(&self, partitions: BTreeSet<TopicPartition>) {
        if let Ok(mut backlogged) = self.backlogged.write() {
            *backlogged = partitions;
        }
    }

    /// Why the version, which has reached its boundary, cannot go live before somebody has mended something.
    #[must_use]
    pub fn not_live(&self) -> Option<String> {
        self.not_live.read().map(|why| why.clone()).unwrap_or_default()
    }

    /// Says why that is from now on.
    pub fn set_not_live(&self, why: Option<String>) {
        if let Ok(mut not_live) = self.not_live.write() {
            *not_live = why;
        }
    }

    /// There may be dead letters to publish.
    pub fn publish_soon(&self) {
        self.publish.notify_one();
    }

    /// Waits until there may be dead letters to publish.
    pub async fn publish_wanted(&self) {
        self.publish.notified().await;
    }
}

#[cfg(test)]
mod tests;
