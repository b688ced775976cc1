//! The loop of one version: it owns the state of the version's partitions and never waits for the store or the broker.
//!
//! Everything that takes time runs in a task of its own, which sends a [`Wake`] when it has ended; such a task is never
//! cancelled. What it waits for, in this order of priority: shutdown, the source's events, wakes, the timers, records.

mod assignment;
mod intake;
mod observing;
mod timers;
mod writing;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::observing::Estranged;
use crate::decode::SchemaId;
use crate::pipeline::batch::Reader;
use crate::pipeline::partition::{Partition, State};
use crate::pipeline::writer::PartResult;
use crate::pipeline::{Shared, VersionParts};
use crate::position::{Epoch, NextOffset};
use crate::projection::Declaration;
use crate::record::{Record, TopicPartition};
use crate::source::{
    Cluster, Consumed, Revocation, Source, SourceControl, SourceError, SourceEvent, Trouble,
};
use crate::store::{Claimed, Observed, Promotion, Quarantine, StoreError, VersionKey};
use crate::telemetry::{self, Heartbeat, RetryClass};

const TICK: Duration = Duration::from_secs(1);
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
const REVOKE_COMMIT_TIMEOUT: Duration = Duration::from_secs(2);
const INFRASTRUCTURE_CEILING: Duration = Duration::from_secs(30);
const OPERATOR_CEILING: Duration = Duration::from_mins(1);
const SCHEMA_CEILING: Duration = Duration::from_secs(10);
/// For so long the records of an id that the registry does not know are dead letters without asking again.
const UNKNOWN_SCHEMA_TTL: Duration = Duration::from_mins(1);

/// Why a runner has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Stopped,
    /// Its client cannot go on, or a task of it has panicked: open a new source and run again.
    Broken(String),
    /// The version has been retired.
    Gone,
}

/// What a task has to say when it has ended.
enum Wake {
    /// `None`: the store was not asked, because the cluster did not answer.
    Claimed(TopicPartition, u64, Option<Result<Claimed, StoreError>>),
    /// Whether the broker takes this member for the partition's owner.
    Confirmed(TopicPartition, u64, bool),
    Permit(usize, OwnedSemaphorePermit),
    Written(usize, Vec<PartResult>),
    Schema(SchemaId, SchemaNews),
    Committed(Vec<(TopicPartition, NextOffset)>, Result<(), SourceError>),
    Observed(Result<Observed, StoreError>),
    Promoted(Result<Promotion, StoreError>),
    /// It was about nothing that the runner keeps.
    Nothing,
    Panicked(String),
}

/// What reading a record came to.
enum Next {
    Go,
    Await(SchemaId, Box<Record>),
    Stop(Quarantine),
}

/// Whether somebody has been told that a schema is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SchemaWait {
    Quiet,
    Told,
}

enum SchemaNews {
    Arrived,
    Trouble(String, RetryClass),
}

/// Partitions that the group takes away, until their transactions have ended.
struct Leaving {
    waits_for: HashMap<TopicPartition, Epoch>,
    durable: Vec<(TopicPartition, NextOffset)>,
    done: Revocation,
}

/// One version at work. See the module's documentation.
pub struct Runner {
    shared: Arc<Shared>,
    version: VersionKey,
    declaration: Arc<Declaration>,
    parts: Arc<VersionParts>,
    reader: Reader,
    cluster: Arc<dyn Cluster>,
    control: Arc<dyn SourceControl>,
    events: mpsc::UnboundedReceiver<SourceEvent>,
    records: mpsc::Receiver<Vec<Consumed>>,
    partitions: HashMap<TopicPartition, Partition>,
    /// Partitions that have been taken away while a transaction was in flight, and those waiting for them.
    leaving: Vec<Leaving>,
    /// Partitions that were lost while no broker answered.
    estranged: HashMap<TopicPartition, Estranged>,
    /// Numbers of the latest claims: an answer to an older one is not for the present assignment.
    claims: HashMap<TopicPartition, u64>,
    next_claim: u64,
    lanes: Vec<Lane>,
    fetching: HashMap<SchemaId, SchemaWait>,
    tasks: Tasks,
    wakes: mpsc::UnboundedReceiver<Wake>,
    committing: bool,
    observing: bool,
    /// When partitions were last looked for that their topic no longer has.
    looked_at: Option<Instant>,
    promotion: PromotionState,
    trouble: Option<Trouble>,
    held: Held,
    heartbeat: Heartbeat,
    ended: Option<Ended>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PromotionState {
    /// To be asked for when a partition reaches its boundary; and from then on, since a crash may have come between the two.
    Wanted(Instant),
    Asking,
    /// A partition has reached its boundary since the question.
    AskingAgain,
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Idle,
    Asking,
    Writing,
}

/// Starts tasks whose end, even by a panic, wakes the runner.
#[derive(Clone)]
struct Tasks(mpsc::UnboundedSender<Wake>);

impl Tasks {
    fn spawn(&self, task: impl Future<Output = Wake> + Send + 'static) {
        let wakes = self.0.clone();
        tokio::spawn(async move {
            let wake = match tokio::spawn(task).await {
                Ok(wake) => wake,
                Err(error) => Wake::Panicked(error.to_string()),
            };
            // Nobody listens once the runner has ended; then nobody needs to know.
            drop(wakes.send(wake));
        });
    }

    fn is_heard(&self) -> bool {
        !self.0.is_closed()
    }
}

impl Runner {
    /// A runner that reads from `source`.
    #[must_use]
    pub fn new(
        shared: Arc<Shared>,
        parts: Arc<VersionParts>,
        cluster: Arc<dyn Cluster>,
        source: Source,
    ) -> Self {
        let (sender, wakes) = mpsc::unbounded_channel();
        let lanes = vec![Lane::Idle; shared.lanes];
        let reader = parts.reader();
        Self {
            version: parts.version.clone(),
            declaration: parts.declaration.clone(),
            reader,
            cluster,
            control: source.control,
            events: source.events,
            records: source.records,
            partitions: HashMap::new(),
            leaving: Vec::new(),
            estranged: HashMap::new(),
            claims: HashMap::new(),
            next_claim: 0,
            lanes,
            fetching: HashMap::new(),
            tasks: Tasks(sender),
            wakes,
            committing: false,
            observing: false,
            looked_at: None,
            promotion: PromotionState::Wanted(Instant::now()),
            trouble: None,
            held: Held::new(shared.clone()),
            heartbeat: shared.health.heartbeat(parts.version.to_string()),
            ended: None,
            shared,
            parts,
        }
    }

    /// Runs until `stop` is cancelled or the source breaks, then drains and closes within the grace of the process.
    pub async fn run(mut self, stop: CancellationToken) -> Ended {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.ended.is_none() {
            self.start_lanes();
            let retry_at = self.next_retry();
            let has_room = self.shared.budget.has_room(self.held.bytes);
            tokio::select! {
                biased;
                () = stop.cancelled() => self.ended = Some(Ended::Stopped),
                event = self.events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => self.ended = Some(Ended::Broken("the kafka client has ended".to_owned())),
                },
                Some(wake) = self.wakes.recv() => self.on_wake(wake),
                _ = tick.tick() => self.on_tick(),
                () = tokio::time::sleep_until(retry_at.into()) => {}
                () = self.shared.budget.freed(), if !has_room => {}
                Some(chunk) = self.records.recv(), if has_room => self.on_records(chunk),
            }
            self.hold_back();
            self.account();
        }
        self.drain().await;
        self.ended.unwrap_or(Ended::Stopped)
    }

    fn on_wake(&mut self, wake: Wake) {
        match wake {
            Wake::Claimed(name, number, answer) => self.claimed(name, number, answer),
            Wake::Confirmed(name, number, is_confirmed) => self.confirmed(name, number, is_confirmed),
            Wake::Permit(lane, permit) => self.on_permit(lane, permit),
            Wake::Written(lane, results) => self.on_written(lane, results),
            Wake::Schema(id, news) => self.on_schema(id, news),
            Wake::Committed(positions, result) => {
                self.committing = false;
                self.committed(positions, &result);
            }
            Wake::Observed(answer) => self.observed(answer),
            Wake::Promoted(answer) => self.promoted(answer),
            Wake::Nothing => {}
            Wake::Panicked(what) => self.ended = Some(Ended::Broken(format!("a task panicked: {what}"))),
        }
    }

    /// Partitions that are taken away while the runner ends are let go at once.
    fn give_up(&mut self, event: SourceEvent) {
        if let SourceEvent::Revoked { partitions, .. } = event {
            for name in partitions {
                self.partitions.remove(&name);
                self.claims.remove(&name);
            }
        }
    }

    /// Tells the process-wide budget what this runner holds.
    fn account(&mut self) {
        let held = self
            .partitions
            .values()
            .map(|partition| match &partition.state {
                State::Flowing(flow) => flow.bytes(),
                _ => 0,
            })
            .sum();
        self.held.set(held);
    }

    /// Lets transactions in flight end, commits what is durable and leaves the group, within the grace; a part of it is left
    /// for what the process does after its runners.
    async fn drain(&mut self) {
        let deadline = tokio::time::Instant::now() + self.shared.grace.mul_f64(0.75);
        for partition in self.partitions.values() {
            if let State::Flowing(flow) = &partition.state {
                flow.stop.cancel();
            }
        }
        while self.lanes.contains(&Lane::Writing) {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(deadline) => break,
                Some(event) = self.events.recv() => self.give_up(event),
                Some(wake) = self.wakes.recv() => match wake {
                    Wake::Written(lane, results) => self.on_written(lane, results),
                    Wake::Committed(positions, result) => self.committed(positions, &result),
                    _ => {}
                },
            }
        }
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        let positions = self.positions();
        if !positions.is_empty()
            && self.ended == Some(Ended::Stopped)
            && let Err(error) = self.control.commit(&positions, left.min(REVOKE_COMMIT_TIMEOUT)).await
        {
            tracing::info!(version = %self.version, %error, "the last commit of offsets failed; the store has the truth");
        }
        // Revocations that the close itself brings find nobody to drain: they are let go at once.
        self.leaving.clear();
        self.events.close();
        while let Ok(event) = self.events.try_recv() {
            self.give_up(event);
        }
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        self.control.close(left.max(Duration::from_millis(500))).await;
        for name in self.partitions.keys().chain(self.estranged.keys()) {
            telemetry::partition_gone(&self.version, name);
        }
    }
}

/// What a runner holds of the process-wide budget; given back when the runner ends, however it ends.
struct Held {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Held {
    const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, bytes: 0 }
    }

    fn set(&mut self, bytes: usize) {
        self.shared.budget.change(self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}
