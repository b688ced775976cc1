//! The loop of one version: it owns the state of the version's partitions and never waits for the store or the broker.
//!
//! Everything that takes time runs in a task of its own, which sends a [`Wake`] when it has ended; such a task is never
//! cancelled. What it waits for, in this order of priority: shutdown, the source's events, wakes, the timers, records.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Outcome, Read, Reader, Taken, decide};
use super::partition::{Flow, Partition, Retry, State, Waiting};
use super::retry::{self, Backoff, Relief};
use super::writer::{self, Job, Part, PartEnd, PartResult, Turn, Wait};
use super::{Shared, VersionParts};
use crate::dead_letter::DeadLetter;
use crate::decode::SchemaId;
use crate::decode::registry::RegistryError;
use crate::position::{Epoch, NextOffset};
use crate::projection::{Declaration, OnError};
use crate::record::{Record, TopicPartition};
use crate::source::{
    Cluster, Consumed, LogFault, Ownership, Revocation, Source, SourceControl, SourceError, SourceEvent, StreamId,
};
use crate::store::{
    ClaimRequest, Claimed, InstanceReport, Observation, OperatorAction, OperatorRequest, PositionRow, Promotion,
    Quarantine, QuarantineChange, StoreError, VersionKey,
};
use crate::telemetry::{self, Heartbeat};

const TICK: Duration = Duration::from_secs(1);
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
const REVOKE_COMMIT_TIMEOUT: Duration = Duration::from_secs(2);
const INFRASTRUCTURE_CEILING: Duration = Duration::from_secs(30);
const OPERATOR_CEILING: Duration = Duration::from_secs(60);
const SCHEMA_CEILING: Duration = Duration::from_secs(10);
/// For so long the records of an id that the registry does not know are dead letters without asking again.
const UNKNOWN_SCHEMA_TTL: Duration = Duration::from_secs(60);

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
    Observed(Result<Vec<OperatorRequest>, StoreError>),
    Promoted(Result<Promotion, StoreError>),
    Left,
    Panicked(String),
}

/// What reading a record came to.
enum Next {
    Go,
    Await(SchemaId, Box<Record>),
    Stop(Quarantine),
}

enum SchemaNews {
    Arrived,
    Trouble(String),
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
    /// Numbers of the latest claims: an answer to an older one is not for the present assignment.
    claims: HashMap<TopicPartition, u64>,
    next_claim: u64,
    lanes: Vec<Lane>,
    fetching: HashSet<SchemaId>,
    tasks: Tasks,
    wakes: mpsc::UnboundedReceiver<Wake>,
    committing: bool,
    observing: bool,
    promotion: PromotionState,
    trouble: Option<String>,
    held: Held,
    heartbeat: Heartbeat,
    ended: Option<Ended>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PromotionState {
    Wanted,
    Asking,
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
    pub fn new(shared: Arc<Shared>, parts: Arc<VersionParts>, cluster: Arc<dyn Cluster>, source: Source) -> Self {
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
            claims: HashMap::new(),
            next_claim: 0,
            lanes,
            fetching: HashSet::new(),
            tasks: Tasks(sender),
            wakes,
            committing: false,
            observing: false,
            promotion: PromotionState::Wanted,
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

    // ---- the source's events

    fn on_event(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Assigned { partitions } => {
                self.shared.health.joined();
                for partition in partitions {
                    self.assigned(partition);
                }
            }
            SourceEvent::Revoked { partitions, ownership, done } => self.revoked(partitions, ownership, done),
            SourceEvent::LogFault { partition, stream, fault } => self.log_fault(&partition, stream, &fault),
            SourceEvent::Trouble(trouble) => {
                if let Some(what) = &trouble {
                    tracing::warn!(version = %self.version, what, "kafka is in trouble; the client goes on trying");
                }
                self.trouble = trouble;
            }
            SourceEvent::Fatal(why) => self.ended = Some(Ended::Broken(why)),
        }
    }

    fn assigned(&mut self, partition: TopicPartition) {
        tracing::info!(version = %self.version, %partition, "assigned");
        let lane = self.emptiest_lane();
        let state = State::Claiming(Backoff::up_to(INFRASTRUCTURE_CEILING));
        self.partitions.insert(partition.clone(), Partition { lane, state, committed: None });
        self.claim(partition);
    }

    /// The lane with the fewest partitions.
    fn emptiest_lane(&self) -> usize {
        let load = |lane: usize| self.partitions.values().filter(|partition| partition.lane == lane).count();
        (0..self.lanes.len()).min_by_key(|lane| load(*lane)).unwrap_or(0)
    }

    fn revoked(&mut self, partitions: Vec<TopicPartition>, ownership: Ownership, done: Revocation) {
        let mut leaving = Leaving { waits_for: HashMap::new(), durable: Vec::new(), done };
        for name in partitions {
            tracing::info!(version = %self.version, partition = %name, ?ownership, "revoked");
            self.claims.remove(&name);
            telemetry::partition_gone(&self.version, &name);
            self.parts.owned(&name, false);
            let Some(partition) = self.partitions.remove(&name) else { continue };
            if ownership == Ownership::Lost {
                continue;
            }
            match partition.state {
                State::Flowing(flow) if flow.in_flight => {
                    leaving.waits_for.insert(name, flow.fence.epoch);
                }
                State::Flowing(flow) => leaving.durable.push((name, flow.fence.position)),
                State::Quarantined { fence, .. } => leaving.durable.push((name, fence.position)),
                State::Claiming(_) => {}
            }
        }
        if leaving.waits_for.is_empty() {
            self.let_go(leaving);
        } else {
            self.leaving.push(leaving);
        }
    }

    /// Commits what is durable of revoked partitions, then lets the source give them up.
    fn let_go(&self, leaving: Leaving) {
        let control = self.control.clone();
        self.tasks.spawn(async move {
            // Once the source has given up waiting, a commit could set the offset back behind the next owner's.
            if !leaving.durable.is_empty()
                && !leaving.done.is_over()
                && let Err(error) = control.commit(&leaving.durable, REVOKE_COMMIT_TIMEOUT).await
            {
                tracing::debug!(%error, "committing at revoke failed; the store has the truth");
            }
            drop(leaving.done);
            Wake::Left
        });
    }

    fn log_fault(&mut self, name: &TopicPartition, stream: StreamId, fault: &LogFault) {
        let why = log_quarantine(&self.version, fault);
        let Some(flow) = self.flow(name) else { return };
        if flow.stream == stream {
            flow.quarantine = QuarantineChange::Enter(why);
            self.control.pause(name);
        }
    }

    // ---- claims

    fn claim(&mut self, name: TopicPartition) {
        self.next_claim += 1;
        let number = self.next_claim;
        self.claims.insert(name.clone(), number);
        let (store, parts, cluster) = (self.shared.store.clone(), self.parts.clone(), self.cluster.clone());
        let (version, instance) = (self.version.clone(), self.shared.instance.clone());
        self.tasks.spawn(async move {
            // The topic may have been made anew since it was last asked about.
            if let Err(error) = parts.refresh_topic_ids(cluster.as_ref()).await {
                tracing::warn!(%version, partition = %name, %error, "the topics' ids are not known; trying again");
                return Wake::Claimed(name, number, None);
            }
            let topic_id = parts.topic_id(&name.topic);
            let request = ClaimRequest { version, partition: name.clone(), topic_id, instance };
            let answer = store.claim(&request).await;
            Wake::Claimed(name, number, Some(answer))
        });
    }

    fn is_current(&self, name: &TopicPartition, number: u64) -> bool {
        self.claims.get(name) == Some(&number)
    }

    fn claimed(&mut self, name: TopicPartition, number: u64, answer: Option<Result<Claimed, StoreError>>) {
        if !self.is_current(&name, number) {
            return;
        }
        match answer {
            Some(Ok(Claimed::Owned(row))) => return self.own(&name, &row),
            Some(Ok(Claimed::Gone)) => self.ended = Some(Ended::Gone),
            Some(Ok(Claimed::Lost)) | None => {}
            Some(Err(error)) => {
                tracing::warn!(version = %self.version, partition = %name, %error, "claiming failed; trying again");
                telemetry::retry(&self.version, "claim");
            }
        }
        self.confirm_later(name);
    }

    /// Asks the broker, after a pause, whether the partition is still this member's, and then claims it again.
    fn confirm_later(&mut self, name: TopicPartition) {
        if let Some(Partition { state: State::Claiming(backoff), .. }) = self.partitions.get_mut(&name) {
            let delay = backoff.next(retry::jitter());
            self.confirm(name, delay);
        }
    }

    fn own(&mut self, name: &TopicPartition, row: &PositionRow) {
        let position = row.fence.position;
        tracing::info!(version = %self.version, partition = %name, %position, epoch = %row.fence.epoch, "claimed");
        self.parts.owned(name, true);
        match &row.quarantine {
            Some(why) => {
                let why = why.clone();
                let topic_id = row.topic_id.clone();
                let (fence, boundary) = (row.fence, row.boundary);
                self.set_state(name, State::Quarantined { fence, boundary, topic_id, oldest: None, why });
            }
            None => drop(self.begin(name, row)),
        }
        self.parts.publish_soon();
    }

    /// Begins to read a partition, unless its topic was made anew since the position was written.
    fn begin(&mut self, name: &TopicPartition, row: &PositionRow) -> Option<&mut Flow> {
        let position = row.fence.position;
        let recreated = match (&row.topic_id, self.parts.topic_id(&name.topic)) {
            (Some(expected), Some(found)) if *expected != found => {
                Some(LogFault::Recreated { expected: expected.clone(), found })
            }
            _ => None,
        };
        let stream = if recreated.is_some() { StreamId::NONE } else { self.control.begin(name, position) };
        let mut flow = Flow::new(row, stream, self.new_batch(position), self.shared.batch_records);
        if let Some(fault) = recreated {
            flow.quarantine = QuarantineChange::Enter(log_quarantine(&self.version, &fault));
        }
        self.set_state(name, State::Flowing(Box::new(flow)));
        self.flow(name)
    }

    fn set_state(&mut self, name: &TopicPartition, state: State) {
        if let Some(partition) = self.partitions.get_mut(name) {
            partition.state = state;
        }
    }

    fn new_batch(&self, position: NextOffset) -> Batch {
        Batch::new(&self.declaration.tables, position)
    }

    /// A partition that was lost in the store is claimed again only after the broker has confirmed this member: it must
    /// accept a commit of the position just read from the store. A member that was expelled hears of it by a revocation,
    /// which ends these attempts.
    fn confirm(&mut self, name: TopicPartition, delay: Duration) {
        self.next_claim += 1;
        let number = self.next_claim;
        self.claims.insert(name.clone(), number);
        let (store, control, version) = (self.shared.store.clone(), self.control.clone(), self.version.clone());
        self.tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            let Ok(rows) = store.status(Some(&version.projection)).await else {
                return Wake::Confirmed(name, number, false);
            };
            // No row: the partition is new, or the version has been retired. The claim tells which.
            let is_confirmed = match rows.into_iter().find(|row| row.version == version && row.partition == name) {
                None => true,
                Some(row) => control.commit(&[(name.clone(), row.position)], COMMIT_TIMEOUT).await.is_ok(),
            };
            Wake::Confirmed(name, number, is_confirmed)
        });
    }

    fn confirmed(&mut self, name: TopicPartition, number: u64, is_confirmed: bool) {
        if !self.is_current(&name, number) {
            return;
        }
        if is_confirmed {
            self.claim(name);
        } else {
            self.confirm_later(name);
        }
    }

    // ---- records

    fn on_records(&mut self, chunk: Vec<Consumed>) {
        for item in chunk {
            match item {
                Consumed::Record { stream, record } => {
                    let name = record.coordinates.topic_partition.clone();
                    if self.is_expected(&name, stream) {
                        self.take(&name, record);
                    }
                }
                Consumed::End { stream, partition, end } => {
                    if self.is_expected(&partition, stream)
                        && let Some(flow) = self.flow(&partition)
                    {
                        match &mut flow.waiting {
                            Some(waiting) => waiting.end = Some(end),
                            None => {
                                flow.open.extend_to(end);
                                flow.waits_for_record = false;
                            }
                        }
                    }
                }
            }
        }
    }

    fn flow(&mut self, name: &TopicPartition) -> Option<&mut Flow> {
        match self.partitions.get_mut(name) {
            Some(Partition { state: State::Flowing(flow), .. }) => Some(flow),
            _ => None,
        }
    }

    fn is_expected(&mut self, name: &TopicPartition, stream: StreamId) -> bool {
        self.flow(name).is_some_and(|flow| flow.stream == stream && flow.accepts())
    }

    fn take(&mut self, name: &TopicPartition, record: Record) {
        let Some(flow) = self.flow(name) else { return };
        if flow.open.end().is_past(record.coordinates.offset) {
            return;
        }
        if let Some(waiting) = &mut flow.waiting {
            waiting.bytes += record.size();
            waiting.records.push_back(record);
            return;
        }
        self.read(name, record);
    }

    /// Takes one record through the stages and into its partition's open batch.
    fn read(&mut self, name: &TopicPartition, record: Record) {
        let at = record.coordinates.clone();
        let timestamp = record.timestamp.millis();
        let Some(Partition { state: State::Flowing(flow), .. }) = self.partitions.get_mut(name) else { return };
        let may_pass = flow.may_pass == Some(at.offset.position());
        let policy = decide(self.declaration.on_error, may_pass);
        let reader = &mut self.reader;
        let batch = &mut flow.open;
        let parts = &self.parts;
        // A panic in a projection, or in ours, must stop this partition only.
        let taken = std::panic::catch_unwind(AssertUnwindSafe(|| match reader.read(record) {
            Read::AwaitsSchema(schema, record) => Next::Await(schema, record),
            Read::Taken(Taken { record, outcome: Outcome::Changes(changes) }) => {
                batch.push(record, changes);
                Next::Go
            }
            Read::Taken(Taken { record, outcome: Outcome::Fault(fault, schema) }) => match policy {
                OnError::Quarantine => Next::Stop(writer::quarantine_for(&parts.version, &record, &fault)),
                OnError::DeadLetter => {
                    batch.push_dead_letter(DeadLetter {
                        version: parts.version.clone(),
                        topic_id: parts.topic_id(&record.coordinates.topic_partition.topic),
                        record,
                        fault: *fault,
                        schema_id: schema.map(|id| id.0),
                    });
                    Next::Go
                }
            },
        }));
        let next = taken.unwrap_or_else(|_| {
            // What was folded of the record before the panic goes again.
            flow.open.drop_applied(&self.declaration.tables, 0);
            Next::Stop(writer::bug_quarantine(&self.version, &format!("reading record {at} panicked")))
        });
        match next {
            Next::Go => flow.waits_for_record = false,
            Next::Await(schema, record) => {
                let bytes = record.size();
                flow.waiting =
                    Some(Waiting { schema, why: None, records: VecDeque::from([*record]), end: None, bytes });
                self.fetch(schema);
            }
            Next::Stop(why) => {
                flow.open.extend_to(at.offset.position());
                flow.culprit = timestamp;
                flow.quarantine = QuarantineChange::Enter(why);
                self.control.pause(name);
            }
        }
    }

    /// A partition that waits for something outside holds only so much: the rest stays with the broker.
    fn hold_back(&mut self) {
        let cap = self.shared.partition_bytes;
        for (name, partition) in &mut self.partitions {
            let State::Flowing(flow) = &mut partition.state else { continue };
            if flow.accepts() && flow.is_waiting() && flow.bytes() > cap {
                flow.is_held = true;
                self.control.pause(name);
            } else if flow.is_held && !flow.is_waiting() && !flow.in_flight {
                flow.is_held = false;
                flow.stream = self.control.begin(name, flow.open.end());
            }
        }
    }

    // ---- schemas

    fn fetch(&mut self, id: SchemaId) {
        if !self.fetching.insert(id) {
            return;
        }
        self.ask_registry(id);
    }

    /// Asks until the schema has come or the registry has said for a bounded time that it does not know it. Time in which
    /// it did not answer does not count.
    fn ask_registry(&self, id: SchemaId) {
        let schemas = self.parts.schemas.clone();
        let patience = self.shared.unknown_schema_wait;
        let tasks = self.tasks.clone();
        self.tasks.spawn(async move {
            let mut backoff = Backoff::up_to(SCHEMA_CEILING);
            let mut unknown_since: Option<Instant> = None;
            while tasks.is_heard() {
                let error = match schemas.fetch(id).await {
                    Ok(()) => break,
                    Err(error) => error,
                };
                if matches!(error, RegistryError::Unknown { .. }) {
                    let since = *unknown_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= patience {
                        schemas.declare_unknown(id, UNKNOWN_SCHEMA_TTL);
                        break;
                    }
                } else {
                    unknown_since = None;
                }
                drop(tasks.0.send(Wake::Schema(id, SchemaNews::Trouble(error.to_string()))));
                tokio::time::sleep(backoff.next(retry::jitter())).await;
            }
            Wake::Schema(id, SchemaNews::Arrived)
        });
    }

    fn on_schema(&mut self, id: SchemaId, news: SchemaNews) {
        let names: Vec<TopicPartition> = self
            .partitions
            .iter()
            .filter(|(_, partition)| {
                matches!(&partition.state, State::Flowing(flow) if flow.waiting.as_ref().is_some_and(|w| w.schema == id))
            })
            .map(|(name, _)| name.clone())
            .collect();
        match news {
            SchemaNews::Trouble(why) => {
                telemetry::retry(&self.version, "registry");
                tracing::warn!(version = %self.version, schema = id.0, %why, "a schema is not there; its partitions wait");
                for name in names {
                    if let Some(waiting) = self.flow(&name).and_then(|flow| flow.waiting.as_mut()) {
                        waiting.why = Some(format!("schema {}: {why}", id.0));
                    }
                }
            }
            SchemaNews::Arrived => {
                self.fetching.remove(&id);
                for name in names {
                    self.go_on(&name);
                }
            }
        }
    }

    /// Reads what has waited for a schema, until it waits for another one.
    fn go_on(&mut self, name: &TopicPartition) {
        let Some(mut waiting) = self.flow(name).and_then(|flow| flow.waiting.take()) else { return };
        while let Some(record) = waiting.records.pop_front() {
            self.read(name, record);
            let Some(flow) = self.flow(name) else { return };
            if let Some(next) = &mut flow.waiting {
                next.bytes += waiting.records.iter().map(Record::size).sum::<usize>();
                next.records.append(&mut waiting.records);
                next.end = waiting.end;
                return;
            }
            if matches!(flow.quarantine, QuarantineChange::Enter(_)) {
                return;
            }
        }
        if let (Some(end), Some(flow)) = (waiting.end, self.flow(name)) {
            flow.open.extend_to(end);
        }
    }

    // ---- writing

    /// Lanes with something ready ask for a writer.
    fn start_lanes(&mut self) {
        let now = Instant::now();
        for lane in 0..self.lanes.len() {
            if self.lanes[lane] != Lane::Idle {
                continue;
            }
            let is_ready = self.partitions.values().any(|partition| {
                partition.lane == lane && matches!(&partition.state, State::Flowing(flow) if flow.is_ready(now))
            });
            if is_ready {
                self.lanes[lane] = Lane::Asking;
                let writers = self.shared.writers.clone();
                self.tasks.spawn(async move {
                    match writers.acquire_owned().await {
                        Ok(permit) => Wake::Permit(lane, permit),
                        Err(closed) => Wake::Panicked(closed.to_string()),
                    }
                });
            }
        }
    }

    /// A writer is free: everything that is ready in the lane at this moment goes into one job.
    fn on_permit(&mut self, lane: usize, permit: OwnedSemaphorePermit) {
        let now = Instant::now();
        let mut parts = Vec::new();
        for (name, partition) in &mut self.partitions {
            if partition.lane != lane {
                continue;
            }
            let State::Flowing(flow) = &mut partition.state else { continue };
            if flow.is_ready(now) {
                let topic_id = self.parts.topic_id(&name.topic);
                let part = part_of(flow, name, &self.declaration, topic_id);
                flow.in_flight = true;
                flow.in_flight_since = Some(now);
                flow.bytes_in_flight = part.batch.bytes();
                flow.oldest_in_flight = part.batch.oldest();
                parts.push(part);
            }
        }
        if parts.is_empty() {
            self.lanes[lane] = Lane::Idle;
            return;
        }
        parts.sort_unstable_by(|a, b| a.partition.cmp(&b.partition));
        self.lanes[lane] = Lane::Writing;
        telemetry::batch_records(&self.version, parts.iter().map(|part| part.batch.len()).sum());
        let job = Job { version: self.version.clone(), declaration: self.declaration.clone(), parts };
        let store = self.shared.store.clone();
        let turn = Turn::new(self.shared.writers.clone(), permit);
        self.tasks.spawn(async move { Wake::Written(lane, writer::write(&store, job, turn).await) });
    }

    fn on_written(&mut self, lane: usize, results: Vec<PartResult>) {
        self.lanes[lane] = Lane::Idle;
        for result in results {
            self.count(&result);
            self.left(&result);
            self.written(result);
        }
    }

    fn count(&self, result: &PartResult) {
        let durable = &result.durable;
        if durable.records > 0 {
            telemetry::records_applied(&self.version, &result.partition, durable.records as u64);
        }
        for (stage, reason) in &durable.dead_letters {
            telemetry::dead_letter(&self.version, &result.partition, *stage, *reason);
        }
        if let Some(age) = durable.oldest.and_then(|oldest| u64::try_from(now_millis() - oldest).ok()) {
            telemetry::event_to_visible(&self.version, Duration::from_millis(age));
        }
        if !durable.dead_letters.is_empty() {
            self.parts.publish_soon();
        }
    }

    /// A revoked partition's transaction has ended.
    fn left(&mut self, result: &PartResult) {
        let mut ready = Vec::new();
        for (index, leaving) in self.leaving.iter_mut().enumerate() {
            if leaving.waits_for.get(&result.partition) == Some(&result.fence.epoch) {
                leaving.waits_for.remove(&result.partition);
                if !matches!(result.end, PartEnd::Fenced) {
                    leaving.durable.push((result.partition.clone(), result.fence.position));
                }
                if leaving.waits_for.is_empty() {
                    ready.push(index);
                }
            }
        }
        for index in ready.into_iter().rev() {
            let leaving = self.leaving.swap_remove(index);
            self.let_go(leaving);
        }
    }

    fn written(&mut self, result: PartResult) {
        let name = result.partition;
        let most = self.shared.batch_records;
        let Some(flow) = self.flow(&name) else { return };
        if !flow.in_flight || flow.fence.epoch != result.fence.epoch {
            // The partition was taken away and has come back since: this is news of the former assignment.
            return;
        }
        flow.in_flight = false;
        flow.in_flight_since = None;
        flow.bytes_in_flight = 0;
        flow.oldest_in_flight = None;
        flow.fence = result.fence;
        flow.last_applied = result.durable.oldest.or(flow.last_applied);
        match result.end {
            PartEnd::Applied => {
                flow.backoff = None;
                flow.most = flow.most.saturating_mul(2).min(most);
                flow.may_pass = flow.may_pass.filter(|position| *position >= result.fence.position);
                let (fence, boundary) = (flow.fence, flow.boundary);
                if self.promotion == PromotionState::Wanted && fence.position >= boundary {
                    self.ask_promotion();
                }
            }
            PartEnd::Quarantined(why) => {
                tracing::error!(version = %self.version, partition = %name, reason = why.reason, detail = why.detail, "quarantined");
                let (fence, boundary, topic_id) = (flow.fence, flow.boundary, flow.topic_id.clone());
                let oldest = flow.oldest_pending();
                self.control.pause(&name);
                self.set_state(&name, State::Quarantined { fence, boundary, topic_id, oldest, why });
            }
            PartEnd::Fenced => {
                tracing::warn!(version = %self.version, partition = %name, "fenced: another member owns the partition");
                telemetry::fence_lost(&self.version, &name);
                self.control.pause(&name);
                self.parts.owned(&name, false);
                self.set_state(&name, State::Claiming(Backoff::up_to(INFRASTRUCTURE_CEILING)));
                self.confirm(name, Duration::ZERO);
            }
            PartEnd::Failed { error, wait, left } => self.failed(&name, &error, wait, left),
        }
    }

    fn failed(&mut self, name: &TopicPartition, error: &StoreError, wait: Wait, mut left: Box<Part>) {
        let (ceiling, class) = match wait {
            Wait::Infrastructure(_) => (INFRASTRUCTURE_CEILING, "infrastructure"),
            Wait::Operator => (OPERATOR_CEILING, "operator"),
        };
        telemetry::retry(&self.version, class);
        let version = self.version.clone();
        let Some(flow) = self.flow(name) else { return };
        let backoff = flow.backoff.get_or_insert_with(|| Backoff::up_to(ceiling));
        if backoff.attempts() == 0 {
            tracing::warn!(%version, partition = %name, %error, class, "applying failed; trying again until it works");
        }
        if wait == Wait::Infrastructure(Relief::SmallerBatch) && backoff.attempts() > 0 {
            flow.most = (left.batch.len().min(flow.most) / 2).max(1);
        }
        left.most = flow.most;
        let at = Instant::now() + backoff.next(retry::jitter());
        flow.retry = Some(Retry { at, part: left, why: error.to_string() });
    }

    fn next_retry(&self) -> Instant {
        let far = Instant::now() + TICK;
        self.partitions
            .values()
            // A lane that is busy wakes the runner when it has ended.
            .filter(|partition| self.lanes[partition.lane] == Lane::Idle)
            .filter_map(|partition| match &partition.state {
                State::Flowing(flow) if !flow.in_flight => flow.retry.as_ref().map(|retry| retry.at),
                _ => None,
            })
            .min()
            .map_or(far, |at| at.min(far))
    }

    // ---- timers

    fn on_tick(&mut self) {
        self.heartbeat.beat();
        self.commit();
        self.observe();
        if self.promotion == PromotionState::Wanted {
            self.ask_promotion();
        }
    }

    fn positions(&self) -> Vec<(TopicPartition, NextOffset)> {
        let position = |partition: &Partition| match &partition.state {
            State::Flowing(flow) => Some(flow.fence.position),
            State::Quarantined { fence, .. } => Some(fence.position),
            State::Claiming(_) => None,
        };
        self.partitions
            .iter()
            .filter_map(|(name, partition)| {
                position(partition).filter(|at| partition.committed != Some(*at)).map(|at| (name.clone(), at))
            })
            .collect()
    }

    fn commit(&mut self) {
        let positions = self.positions();
        if self.committing || positions.is_empty() {
            return;
        }
        self.committing = true;
        let control = self.control.clone();
        self.tasks.spawn(async move {
            let result = control.commit(&positions, COMMIT_TIMEOUT).await;
            Wake::Committed(positions, result)
        });
    }

    fn committed(&mut self, positions: Vec<(TopicPartition, NextOffset)>, result: &Result<(), SourceError>) {
        if let Err(error) = result {
            tracing::debug!(version = %self.version, %error, "committing offsets failed; the store has the truth");
            return;
        }
        for (name, position) in positions {
            if let Some(partition) = self.partitions.get_mut(&name) {
                partition.committed = Some(position);
            }
        }
    }

    fn observe(&mut self) {
        let ends = self.control.ends();
        let mut observations = Vec::new();
        for (name, partition) in &self.partitions {
            let (fence, oldest, blocked) = match &partition.state {
                State::Flowing(flow) => (flow.fence, flow.oldest_pending(), flow.blocked()),
                State::Quarantined { fence, oldest, .. } => (*fence, *oldest, None),
                State::Claiming(_) => continue,
            };
            let end = ends.readable.get(name).copied();
            let is_behind = end.is_some_and(|end| fence.position < end);
            telemetry::partition(
                &self.version,
                name,
                &telemetry::PartitionGauges {
                    lag_records: end.map(|end| fence.position.lag_to(end)),
                    oldest_pending_millis: oldest.filter(|_| is_behind),
                    state: match &partition.state {
                        State::Quarantined { .. } => telemetry::PartitionState::Quarantined,
                        _ if blocked.is_some() => telemetry::PartitionState::Blocked,
                        _ => telemetry::PartitionState::Flowing,
                    },
                    staleness: self.declaration.staleness,
                },
            );
            observations.push(Observation {
                version: self.version.clone(),
                partition: name.clone(),
                epoch: fence.epoch,
                readable_end: end,
                oldest_pending_at: oldest.filter(|_| is_behind),
                blocked: blocked.or_else(|| self.trouble.clone()),
            });
        }
        if self.observing {
            return;
        }
        self.observing = true;
        let report = InstanceReport {
            instance: self.shared.instance.clone(),
            host: self.shared.host.clone(),
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            broker_answered_at: ends.broker_answered_at,
            observations,
        };
        let store = self.shared.store.clone();
        self.tasks.spawn(async move { Wake::Observed(store.observe(&report).await) });
    }

    fn observed(&mut self, answer: Result<Vec<OperatorRequest>, StoreError>) {
        self.observing = false;
        match answer {
            Ok(requests) => {
                for request in requests.into_iter().filter(|request| request.version == self.version) {
                    self.resume(&request);
                }
            }
            Err(error) => tracing::debug!(version = %self.version, %error, "observing failed; trying again"),
        }
    }

    /// Ends a quarantine: the next transaction of the partition says so in the store.
    fn resume(&mut self, request: &OperatorRequest) {
        let name = &request.partition;
        let Some(Partition { state: State::Quarantined { fence, boundary, topic_id, why, .. }, .. }) =
            self.partitions.get(name)
        else {
            return;
        };
        if request.revision != fence.revision {
            return;
        }
        if !why.ends_by_resume() {
            tracing::warn!(version = %self.version, partition = %name, reason = why.reason, "a fault of the log is not ended by resume");
            return;
        }
        tracing::info!(version = %self.version, partition = %name, action = ?request.action, "resumed by request");
        let row = PositionRow {
            fence: *fence,
            boundary: *boundary,
            topic_id: topic_id.clone(),
            leader_epoch: None,
            quarantine: None,
        };
        let may_pass = (request.action == OperatorAction::ResumeWithDeadLetter).then_some(row.fence.position);
        if let Some(flow) = self.begin(&request.partition, &row)
            && flow.quarantine == QuarantineChange::Keep
        {
            flow.may_pass = may_pass;
            flow.quarantine = QuarantineChange::End;
            flow.waits_for_record = true;
        }
    }

    fn ask_promotion(&mut self) {
        self.promotion = PromotionState::Asking;
        let (store, declaration) = (self.shared.store.clone(), self.declaration.clone());
        self.tasks.spawn(async move { Wake::Promoted(store.promote_first(&declaration).await) });
    }

    fn promoted(&mut self, answer: Result<Promotion, StoreError>) {
        self.promotion = match answer {
            Ok(Promotion::Live) => {
                tracing::info!(version = %self.version, "live: its views are there");
                self.parts.publish_soon();
                PromotionState::Done
            }
            Ok(Promotion::NotYet) => PromotionState::Wanted,
            Err(error) => {
                tracing::debug!(version = %self.version, %error, "promoting failed; trying again");
                PromotionState::Wanted
            }
        };
    }

    // ---- wakes, bounds, end

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
            Wake::Left => {}
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

    /// Lets transactions in flight end, commits what is durable and leaves the group, within the grace.
    async fn drain(&mut self) {
        let deadline = tokio::time::Instant::now() + self.shared.grace;
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
        if !positions.is_empty() && self.ended == Some(Ended::Stopped) {
            if let Err(error) = self.control.commit(&positions, left.min(REVOKE_COMMIT_TIMEOUT)).await {
                tracing::info!(version = %self.version, %error, "the last commit of offsets failed; the store has the truth");
            }
        }
        // Revocations that the close itself brings find nobody to drain: they are let go at once.
        self.leaving.clear();
        self.events.close();
        while let Ok(event) = self.events.try_recv() {
            self.give_up(event);
        }
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        self.control.close(left.max(Duration::from_millis(500))).await;
        for name in self.partitions.keys() {
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

/// The quarantine that a fault of the log causes.
fn log_quarantine(version: &VersionKey, fault: &LogFault) -> Quarantine {
    let way_out = format!("`projector retire {version} --execute` drops the version so that it can be built anew");
    let (reason, found) = match fault {
        LogFault::Expired { position, log_start, log_end } => (
            Quarantine::LOG_EXPIRED,
            format!(
                "position {position} lies before the first offset {log_start} of the log (end {log_end}): {} records are gone",
                position.lag_to(*log_start)
            ),
        ),
        LogFault::Truncated { position, log_start, log_end } => (
            Quarantine::LOG_TRUNCATED,
            format!(
                "position {position} lies beyond the end {log_end} of the log (start {log_start}): the topic was truncated \
                 or made anew"
            ),
        ),
        LogFault::Recreated { expected, found } => (
            Quarantine::TOPIC_RECREATED,
            format!("the position belongs to topic id {expected}, the topic now has {found}: it was made anew"),
        ),
    };
    Quarantine { reason: reason.to_owned(), detail: format!("{found}; {way_out}") }
}

/// Takes what is ready off a flow: what a failed transaction has left, else the open batch.
fn part_of(flow: &mut Flow, name: &TopicPartition, declaration: &Declaration, topic_id: Option<String>) -> Part {
    if let Some(retry) = flow.retry.take() {
        return *retry.part;
    }
    let next = Batch::new(&declaration.tables, flow.open.end());
    let batch = std::mem::replace(&mut flow.open, next);
    Part {
        partition: name.clone(),
        fence: flow.fence,
        batch,
        quarantine: std::mem::replace(&mut flow.quarantine, QuarantineChange::Keep),
        topic_id,
        most: flow.most,
        may_pass: flow.may_pass,
    }
}

fn now_millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
