//! The loop of one version: it owns the state of the version's partitions and never waits for the store or the broker.
//!
//! Everything that takes time runs in a task of its own, which sends a [`Wake`] when it has ended; such a task is never
//! cancelled. What it waits for, in this order of priority: shutdown, the source's events, wakes, the timers, records.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Outcome, Read, Reader, decide};
use super::partition::{Flow, Partition, Retry, State, Waiting};
use super::retry::{self, Backoff, Relief};
use super::writer::{self, Job, Part, PartEnd, PartResult, Wait};
use super::{Shared, VersionParts};
use crate::dead_letter::DeadLetter;
use crate::decode::SchemaId;
use crate::decode::registry::RegistryError;
use crate::position::NextOffset;
use crate::projection::{Declaration, OnError};
use crate::record::{Record, TopicPartition};
use crate::source::{Consumed, LogFault, Ownership, Revocation, Source, SourceControl, SourceError, SourceEvent, StreamId};
use crate::store::{
    ClaimRequest, Claimed, InstanceReport, Observation, OperatorAction, OperatorRequest, PositionRow, Promotion,
    Quarantine, QuarantineChange, StoreError, VersionKey,
};
use crate::telemetry;

const TICK: Duration = Duration::from_secs(1);
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
const REVOKE_COMMIT_TIMEOUT: Duration = Duration::from_secs(2);
const INFRASTRUCTURE_CEILING: Duration = Duration::from_secs(30);
const OPERATOR_CEILING: Duration = Duration::from_secs(60);

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
    Claimed(TopicPartition, u64, Result<Claimed, StoreError>),
    Claim(TopicPartition, u64),
    Confirmed(TopicPartition, u64, Result<(), Refusal>),
    Permit(usize, OwnedSemaphorePermit),
    Written(usize, Vec<PartResult>),
    Schema(SchemaId, SchemaNews),
    Committed(Vec<(TopicPartition, NextOffset)>, Result<(), SourceError>),
    Observed(Result<Vec<OperatorRequest>, StoreError>),
    Promoted(Result<Promotion, StoreError>),
    Panicked(String),
}

enum SchemaNews {
    Arrived,
    Trouble(String),
}

enum Refusal {
    NotAMember,
    Later,
}

/// Partitions that the group takes away, until their transactions have ended.
struct Leaving {
    waits_for: HashSet<TopicPartition>,
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
    held: usize,
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
    pub fn new(shared: Arc<Shared>, parts: Arc<VersionParts>, source: Source) -> Self {
        let (sender, wakes) = mpsc::unbounded_channel();
        let lanes = vec![Lane::Idle; shared.lanes];
        let reader = parts.reader();
        Self {
            version: parts.version.clone(),
            declaration: parts.declaration.clone(),
            reader,
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
            held: 0,
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
            let has_room = self.shared.budget.has_room(self.held);
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
            self.account();
        }
        self.drain().await;
        self.ended.unwrap_or(Ended::Stopped)
    }

    // ---- the source's events

    fn on_event(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Assigned { partitions } => {
                self.parts.joined();
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
        let mut leaving = Leaving { waits_for: HashSet::new(), durable: Vec::new(), done };
        for name in partitions {
            tracing::info!(version = %self.version, partition = %name, ?ownership, "revoked");
            self.claims.remove(&name);
            telemetry::partition_gone(&self.version, &name);
            let Some(partition) = self.partitions.remove(&name) else { continue };
            if ownership == Ownership::Lost {
                continue;
            }
            match partition.state {
                State::Flowing(flow) if flow.in_flight => {
                    leaving.waits_for.insert(name);
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
            let result = if leaving.durable.is_empty() {
                Ok(())
            } else {
                control.commit(&leaving.durable, REVOKE_COMMIT_TIMEOUT).await
            };
            drop(leaving.done);
            Wake::Committed(Vec::new(), result)
        });
    }

    fn log_fault(&mut self, name: &TopicPartition, stream: StreamId, fault: &LogFault) {
        let command = format!("projector retire {}@{}", self.version.projection, self.version.version);
        let (reason, detail) = match fault {
            LogFault::Expired { position, log_start, log_end } => (
                "log_expired",
                format!(
                    "position {position} lies before the first offset {log_start} of the log (end {log_end}): {} records \
                     are gone; `{command}` drops the version so that it can be built anew",
                    position.lag_to(*log_start)
                ),
            ),
            LogFault::Truncated { position, log_start, log_end } => (
                "log_truncated",
                format!(
                    "position {position} lies beyond the end {log_end} of the log (start {log_start}): the topic was \
                     truncated or made anew; `{command}` drops the version so that it can be built anew"
                ),
            ),
            LogFault::Recreated { expected, found } => (
                "topic_recreated",
                format!(
                    "the position belongs to topic id {expected}, the topic now has {found}: it was made anew; \
                     `{command}` drops the version so that it can be built anew"
                ),
            ),
        };
        let Some(Partition { state: State::Flowing(flow), .. }) = self.partitions.get_mut(name) else { return };
        if flow.stream == stream {
            flow.quarantine = QuarantineChange::Enter(Quarantine { reason: reason.to_owned(), detail });
            self.control.pause(name);
        }
    }

    // ---- claims

    fn claim(&mut self, name: TopicPartition) {
        self.next_claim += 1;
        let number = self.next_claim;
        self.claims.insert(name.clone(), number);
        let store = self.shared.store.clone();
        let request = ClaimRequest {
            version: self.version.clone(),
            partition: name.clone(),
            topic_id: self.parts.topic_id(&name.topic),
            instance: self.shared.instance.clone(),
        };
        self.tasks.spawn(async move { Wake::Claimed(name, number, store.claim(&request).await) });
    }

    fn is_current(&self, name: &TopicPartition, number: u64) -> bool {
        self.claims.get(name) == Some(&number)
    }

    fn claimed(&mut self, name: TopicPartition, number: u64, answer: Result<Claimed, StoreError>) {
        if !self.is_current(&name, number) {
            return;
        }
        match answer {
            Ok(Claimed::Owned(row)) => self.own(&name, &row),
            Ok(Claimed::Gone) => self.ended = Some(Ended::Gone),
            Ok(Claimed::Lost) => self.claim_later(name, number),
            Err(error) => {
                tracing::warn!(version = %self.version, partition = %name, %error, "claiming failed; trying again");
                telemetry::retry(&self.version, "claim");
                self.claim_later(name, number);
            }
        }
    }

    fn claim_later(&mut self, name: TopicPartition, number: u64) {
        let Some(Partition { state: State::Claiming(backoff), .. }) = self.partitions.get_mut(&name) else { return };
        let delay = backoff.next(retry::jitter());
        self.tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            Wake::Claim(name, number)
        });
    }

    fn own(&mut self, name: &TopicPartition, row: &PositionRow) {
        let position = row.fence.position;
        tracing::info!(version = %self.version, partition = %name, %position, epoch = %row.fence.epoch, "claimed");
        let found = self.parts.topic_id(&name.topic);
        let state = match (&row.quarantine, &row.topic_id, found) {
            (Some(why), _, _) => {
                State::Quarantined { fence: row.fence, boundary: row.boundary, why: why.clone() }
            }
            (None, Some(expected), Some(found)) if *expected != found => {
                // Begun only so that the stream has a number; it is paused at once and its records are dropped.
                let stream = StreamId(0);
                let flow = Flow::new(row, stream, self.new_batch(position), self.shared.batch_records);
                self.set_state(name, State::Flowing(Box::new(flow)));
                self.log_fault(name, stream, &LogFault::Recreated { expected: expected.clone(), found });
                return;
            }
            _ => {
                let stream = self.control.begin(name, position);
                State::Flowing(Box::new(Flow::new(row, stream, self.new_batch(position), self.shared.batch_records)))
            }
        };
        self.set_state(name, state);
        self.parts.publish_soon();
    }

    fn set_state(&mut self, name: &TopicPartition, state: State) {
        if let Some(partition) = self.partitions.get_mut(name) {
            partition.state = state;
        }
    }

    fn new_batch(&self, position: NextOffset) -> Batch {
        Batch::new(&self.declaration.tables, position)
    }

    /// A fenced partition is claimed again only after the broker has confirmed this member: it must accept a commit of
    /// the position just read from the store.
    fn confirm(&mut self, name: TopicPartition, delay: Duration) {
        self.next_claim += 1;
        let number = self.next_claim;
        self.claims.insert(name.clone(), number);
        let (store, control, version) = (self.shared.store.clone(), self.control.clone(), self.version.clone());
        self.tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            let rows = store.status(Some(&version.projection)).await;
            let row = rows.ok().and_then(|rows| {
                rows.into_iter().find(|row| row.version == version && row.partition == name)
            });
            let answer = match row {
                None => Err(Refusal::Later),
                Some(row) => match control.commit(&[(name.clone(), row.position)], COMMIT_TIMEOUT).await {
                    Ok(()) => Ok(()),
                    Err(SourceError::NotAMember { .. }) => Err(Refusal::NotAMember),
                    Err(_) => Err(Refusal::Later),
                },
            };
            Wake::Confirmed(name, number, answer)
        });
    }

    fn confirmed(&mut self, name: TopicPartition, number: u64, answer: &Result<(), Refusal>) {
        if !self.is_current(&name, number) {
            return;
        }
        let Some(Partition { state: State::Claiming(backoff), .. }) = self.partitions.get_mut(&name) else { return };
        match answer {
            Ok(()) => self.claim(name),
            Err(Refusal::Later) => {
                let delay = backoff.next(retry::jitter());
                self.confirm(name, delay);
            }
            Err(Refusal::NotAMember) => {
                tracing::warn!(version = %self.version, partition = %name, "no longer a member; waiting for the next assignment");
            }
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
        let reader = &mut self.reader;
        let read = std::panic::catch_unwind(AssertUnwindSafe(|| reader.read(record)));
        let version = self.version.clone();
        let on_error = self.declaration.on_error;
        let topic_id = self.parts.topic_id(&name.topic);
        let Some(flow) = self.flow(name) else { return };
        match read {
            Ok(Read::Taken(taken)) => match taken.outcome {
                Outcome::Changes(changes) => flow.open.push(taken.record, changes),
                Outcome::Fault(fault, schema) => {
                    let is_first = flow.open.is_empty() && !flow.in_flight && flow.retry.is_none();
                    match decide(on_error, flow.let_pass && is_first) {
                        OnError::DeadLetter => {
                            let letter = DeadLetter {
                                version,
                                topic_id,
                                record: taken.record,
                                fault: *fault,
                                schema_id: schema.map(|id| id.0),
                            };
                            flow.open.push_dead_letter(letter);
                        }
                        OnError::Quarantine => {
                            let why = writer::quarantine_for(&version, &taken.record, &fault);
                            flow.quarantine = QuarantineChange::Enter(why);
                            self.control.pause(name);
                        }
                    }
                }
            },
            Ok(Read::AwaitsSchema(schema, record)) => {
                let bytes = record.size();
                let records = VecDeque::from([*record]);
                flow.waiting = Some(Waiting { schema, why: None, records, end: None, bytes });
                self.fetch(schema);
            }
            Err(_) => {
                let why = writer::bug_quarantine(&format!("reading record {at} panicked"));
                flow.quarantine = QuarantineChange::Enter(why);
                self.control.pause(name);
            }
        }
    }

    // ---- schemas

    fn fetch(&mut self, id: SchemaId) {
        if !self.fetching.insert(id) {
            return;
        }
        self.ask_registry(id, Instant::now(), Backoff::up_to(INFRASTRUCTURE_CEILING), Duration::ZERO);
    }

    /// Asks until the schema has come or, after a bounded time, is declared unknown. Trouble is reported once.
    fn ask_registry(&self, id: SchemaId, begun: Instant, mut backoff: Backoff, first_delay: Duration) {
        let schemas = self.parts.schemas.clone();
        let unknown_wait = self.shared.unknown_schema_wait;
        let tasks = self.tasks.clone();
        let wakes = tasks.0.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(first_delay).await;
            while tasks.is_heard() {
                match schemas.fetch(id).await {
                    Ok(()) => break,
                    Err(RegistryError::Unknown { .. }) if begun.elapsed() >= unknown_wait => {
                        schemas.declare_unknown(id, Duration::from_secs(60));
                        break;
                    }
                    Err(error) => {
                        let _ = wakes.send(Wake::Schema(id, SchemaNews::Trouble(error.to_string())));
                        tokio::time::sleep(backoff.next(retry::jitter())).await;
                    }
                }
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
            if !flow.accepts() {
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
                flow.bytes_in_flight = part.batch.bytes();
                flow.oldest_in_flight = part.batch.oldest_timestamp();
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
        self.tasks.spawn(async move { Wake::Written(lane, writer::write(&store, job, permit).await) });
    }

    fn on_written(&mut self, lane: usize, results: Vec<PartResult>) {
        self.lanes[lane] = Lane::Idle;
        for result in results {
            if result.dead_letters > 0 {
                self.parts.publish_soon();
            }
            self.left(&result);
            self.written(result);
        }
    }

    /// A revoked partition's transaction has ended.
    fn left(&mut self, result: &PartResult) {
        let mut ready = Vec::new();
        for (index, leaving) in self.leaving.iter_mut().enumerate() {
            if leaving.waits_for.remove(&result.partition) {
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
        flow.bytes_in_flight = 0;
        flow.oldest_in_flight = None;
        flow.fence = result.fence;
        match result.end {
            PartEnd::Applied => {
                flow.backoff = None;
                flow.most = most;
                flow.let_pass = false;
                let (fence, boundary) = (flow.fence, flow.boundary);
                telemetry::applied(&self.version, &name, fence.position);
                if self.promotion == PromotionState::Wanted && fence.position >= boundary {
                    self.ask_promotion();
                }
            }
            PartEnd::Quarantined(why) => {
                tracing::error!(version = %self.version, partition = %name, reason = why.reason, detail = why.detail, "quarantined");
                let (fence, boundary) = (flow.fence, flow.boundary);
                self.control.pause(&name);
                self.set_state(&name, State::Quarantined { fence, boundary, why });
            }
            PartEnd::Fenced => {
                tracing::warn!(version = %self.version, partition = %name, "fenced: another member owns the partition");
                telemetry::fence_lost(&self.version, &name);
                self.control.pause(&name);
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
            .filter_map(|partition| match &partition.state {
                State::Flowing(flow) if !flow.in_flight => flow.retry.as_ref().map(|retry| retry.at),
                _ => None,
            })
            .min()
            .map_or(far, |at| at.min(far))
    }

    // ---- timers

    fn on_tick(&mut self) {
        self.parts.beat();
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
                State::Quarantined { fence, .. } => (*fence, None, None),
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
                    self.resume(&request.partition, request.action);
                }
            }
            Err(error) => tracing::debug!(version = %self.version, %error, "observing failed; trying again"),
        }
    }

    /// Ends a quarantine: the next transaction of the partition says so in the store.
    fn resume(&mut self, name: &TopicPartition, action: OperatorAction) {
        let Some(Partition { state: State::Quarantined { fence, boundary, .. }, .. }) = self.partitions.get(name) else {
            return;
        };
        let (fence, boundary) = (*fence, *boundary);
        tracing::info!(version = %self.version, partition = %name, ?action, "resumed by request");
        let row = PositionRow { fence, boundary, topic_id: None, leader_epoch: None, quarantine: None };
        let stream = self.control.begin(name, fence.position);
        let mut flow = Flow::new(&row, stream, self.new_batch(fence.position), self.shared.batch_records);
        flow.let_pass = action == OperatorAction::ResumeWithDeadLetter;
        flow.quarantine = QuarantineChange::End;
        flow.waits_for_record = true;
        self.set_state(name, State::Flowing(Box::new(flow)));
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
            Wake::Claim(name, number) if self.is_current(&name, number) => self.claim(name),
            Wake::Claim(..) => {}
            Wake::Confirmed(name, number, answer) => self.confirmed(name, number, &answer),
            Wake::Permit(lane, permit) => self.on_permit(lane, permit),
            Wake::Written(lane, results) => self.on_written(lane, results),
            Wake::Schema(id, news) => self.on_schema(id, news),
            Wake::Committed(positions, result) => {
                self.committing = false;
                self.committed(positions, &result);
            }
            Wake::Observed(answer) => self.observed(answer),
            Wake::Promoted(answer) => self.promoted(answer),
            Wake::Panicked(what) => self.ended = Some(Ended::Broken(format!("a task panicked: {what}"))),
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
        self.shared.budget.change(self.held, held);
        self.held = held;
    }

    /// Lets transactions in flight end, commits what is durable and leaves the group, within the grace.
    async fn drain(&mut self) {
        let deadline = tokio::time::Instant::now() + self.shared.grace;
        while self.lanes.contains(&Lane::Writing) {
            let Ok(Some(wake)) = tokio::time::timeout_at(deadline, self.wakes.recv()).await else { break };
            match wake {
                Wake::Written(lane, results) => self.on_written(lane, results),
                Wake::Committed(positions, result) => self.committed(positions, &result),
                _ => {}
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
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        self.control.close(left.max(Duration::from_millis(500))).await;
        for name in self.partitions.keys() {
            telemetry::partition_gone(&self.version, name);
        }
        self.shared.budget.change(self.held, 0);
        self.held = 0;
    }
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
        first_may_pass: flow.let_pass,
    }
}

/// Makes a revocation that nobody waits for; for sources that have lost their partitions already.
#[must_use]
pub fn nobody_waits() -> Revocation {
    let (sender, _) = oneshot::channel();
    Revocation(Some(sender))
}
