//! APPLY: one lane's ready batches go to the store in one transaction, and what the store refuses is found.
//!
//! [`write`] takes the parts of a job, one a partition, and says what became of each. It never leaves a partition
//! undecided: an unknown COMMIT is asked about until the store answers. It runs in a task that is never cancelled.
//!
//! 1. All parts in one transaction. *Fenced*: the fenced parts are done, the others go again without them. *Refused*:
//!    every part goes by itself.
//! 2. A part by itself goes in runs, at first one run of all records. A refused run is cut in two, the first half first;
//!    a refused run of one record is the fault's record. Each run is a transaction with its own compare-and-set; where the
//!    partition is being taken away, or the process ends, no further one is begun.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, decide};
use super::retry::{self, Backoff, Class, Relief};
use crate::dead_letter::DeadLetter;
use crate::decode;
use crate::fault::{Reason, RecordFault, Stage};
use crate::fold::Folded;
use crate::position::{Fence, NextOffset};
use crate::projection::{Declaration, OnError};
use crate::record::TopicPartition;
use crate::store::{
    Advance, Applied, Outcome, Quarantine, QuarantineChange, SharedStore, StoreError, Transaction, VersionKey,
};
use crate::telemetry;

/// What a lane has ready.
pub struct Job {
    /// The version.
    pub version: VersionKey,
    /// Its declaration.
    pub declaration: Arc<Declaration>,
    /// What is ready of each partition; no partition twice, and none that is in another job.
    pub parts: Vec<Part>,
}

/// What is ready of one partition.
pub struct Part {
    /// The partition.
    pub partition: TopicPartition,
    /// The fence that its row must hold.
    pub fence: Fence,
    /// The records.
    pub batch: Batch,
    /// What becomes of the quarantine with the (last) transaction of this part.
    pub quarantine: QuarantineChange,
    /// The topic's id, where it is known.
    pub topic_id: Option<String>,
    /// The most records of one transaction; halved by the runner where smaller batches may help.
    pub most: usize,
    /// The record at this position may pass as a dead letter whatever `on_error` says.
    pub may_pass: Option<NextOffset>,
    /// Cancelled once nobody has a use for what is left of it: no further run is begun.
    pub stop: CancellationToken,
}

/// What became of one part.
pub struct PartResult {
    /// The partition.
    pub partition: TopicPartition,
    /// The fence that its row holds now, as far as this owner knows.
    pub fence: Fence,
    /// What has become durable.
    pub durable: Durable,
    /// How it ended.
    pub end: PartEnd,
}

/// What has become durable of a part, for the metrics and the publisher.
#[derive(Debug, Default)]
pub struct Durable {
    /// Records that the position has passed.
    pub records: usize,
    /// Dead letters among them.
    pub dead_letters: Vec<(Stage, Reason)>,
    /// The time of the oldest of them, milliseconds since 1970-01-01 UTC.
    pub oldest: Option<i64>,
    /// The leader epoch of the last of them.
    pub leader_epoch: Option<i32>,
}

impl Durable {
    fn add(&mut self, batch: &Batch, run: Range<usize>) {
        self.records += run.len();
        self.leader_epoch = batch.leader_epoch(run.end).or(self.leader_epoch);
        self.dead_letters
            .extend(batch.dead_letters(run.clone()).map(|letter| (letter.fault.stage, letter.fault.reason)));
        self.oldest = [self.oldest, batch.oldest_timestamp(run)].into_iter().flatten().min();
    }
}

/// How writing a part ended.
pub enum PartEnd {
    /// Everything is durable.
    Applied,
    /// What was good is durable, and the partition is quarantined after it.
    Quarantined(Quarantine),
    /// The partition is being taken away, or the process ends: what was done is durable, the rest is left to the next owner.
    Interrupted,
    /// Somebody else owns the partition.
    Fenced,
    /// A fault outside: this is left to be done.
    Failed {
        /// What the store said.
        error: StoreError,
        /// What is to be done about it.
        wait: Wait,
        /// What is not applied yet, with the partition's quarantine change.
        left: Box<Part>,
    },
}

/// How to go on after a fault outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Retry soon.
    Infrastructure(Relief),
    /// Retry patiently.
    Operator,
}

/// Writes a job. See the module's documentation for the order of steps.
pub async fn write(store: &SharedStore, job: Job, turn: Turn) -> Vec<PartResult> {
    let mut writer = Writer { store, version: job.version, declaration: job.declaration, turn };
    writer.together(job.parts).await
}

/// A job's turn at the store: one of the process's writers.
#[derive(Debug)]
pub struct Turn {
    writers: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// A turn that has come.
    #[must_use]
    pub const fn new(writers: Arc<Semaphore>, permit: OwnedSemaphorePermit) -> Self {
        Self { writers, permit: Some(permit) }
    }

    /// Lets others go first.
    fn give_back(&mut self) {
        self.permit = None;
    }

    /// Waits for the next turn, unless this one still holds.
    async fn take(&mut self) {
        if self.permit.is_none() {
            self.permit = self.writers.clone().acquire_owned().await.ok();
        }
    }
}

struct Writer<'a> {
    store: &'a SharedStore,
    version: VersionKey,
    declaration: Arc<Declaration>,
    /// Given back while an unknown COMMIT is asked about, so that a silent store stops nobody else's turn.
    turn: Turn,
}

/// What one transaction came to.
enum Attempt {
    Committed,
    Fenced(Vec<usize>),
    Refused(Box<RecordFault>),
    Failed(StoreError, Wait),
    Bug(StoreError),
}

impl Writer<'_> {
    async fn together(&mut self, mut parts: Vec<Part>) -> Vec<PartResult> {
        let mut results = Vec::with_capacity(parts.len());
        loop {
            if parts.is_empty() {
                return results;
            }
            if parts.len() == 1 || parts.iter().any(|part| part.batch.len() > part.most) {
                for part in parts {
                    results.push(self.alone(part).await);
                }
                return results;
            }
            match self.transact_all(&parts).await {
                Attempt::Committed => {
                    results.extend(parts.into_iter().map(committed));
                    return results;
                }
                Attempt::Fenced(lost) => {
                    for index in lost.into_iter().rev() {
                        results.push(fenced(&parts.remove(index)));
                    }
                }
                Attempt::Refused(_)
                | Attempt::Bug(_)
                | Attempt::Failed(_, Wait::Operator | Wait::Infrastructure(Relief::SmallerBatch)) => {
                    for part in parts {
                        results.push(self.alone(part).await);
                    }
                    return results;
                }
                Attempt::Failed(error, wait @ Wait::Infrastructure(Relief::Wait)) => {
                    results.extend(parts.into_iter().map(|part| failed(part, error.clone(), wait)));
                    return results;
                }
            }
        }
    }

    async fn transact_all(&mut self, parts: &[Part]) -> Attempt {
        let advances: Vec<Advance> = parts.iter().map(whole_advance).collect();
        let mut merged = Folded::new(&self.declaration.tables);
        for part in parts {
            merged.merge(part.batch.folded().clone());
        }
        let letters = parts.iter().flat_map(|part| part.batch.dead_letters(0..part.batch.len())).collect();
        self.transact(&merged, letters, &advances).await
    }

    /// Writes one partition's part, cutting it where the store refuses.
    async fn alone(&mut self, mut part: Part) -> PartResult {
        let total = part.batch.len();
        let most = part.most.max(1);
        let start = part.fence.position;
        let mut durable = Durable::default();
        // Runs still to do, the next one last. An empty batch is one empty run: its end may lie ahead.
        let mut runs: Vec<(usize, usize)> =
            (0..total.max(1)).step_by(most).map(|from| (from, (from + most).min(total))).rev().collect();
        while let Some((from, to)) = runs.pop() {
            if part.stop.is_cancelled() {
                return PartResult { durable, end: PartEnd::Interrupted, ..fenced(&part) };
            }
            let advance = run_advance(&part, from, to, start);
            match self.transact_run(&part, from..to, &advance).await {
                Attempt::Committed => {
                    part.fence = part.fence.advanced_to(advance.to);
                    if part.quarantine == QuarantineChange::End {
                        part.quarantine = QuarantineChange::Keep;
                    }
                    durable.add(&part.batch, from..to);
                }
                Attempt::Fenced(_) => return PartResult { durable, ..fenced(&part) },
                Attempt::Refused(_) | Attempt::Bug(_) if to - from > 1 => {
                    let middle = from + (to - from) / 2;
                    runs.push((middle, to));
                    runs.push((from, middle));
                }
                Attempt::Refused(fault) if to > from && !part.batch.is_buried(from) => {
                    match decide(self.declaration.on_error, part.may_pass(from)) {
                        OnError::DeadLetter => {
                            part.batch.bury(from, self.letter(&part, from, *fault));
                            runs.push((from, to));
                        }
                        OnError::Quarantine => {
                            let why = Quarantine::of_record(&part.batch.record(from).coordinates, &fault);
                            return self.quarantine(part, from, why, durable).await;
                        }
                    }
                }
                // A record whose changes are not even tried any more, or no record at all.
                Attempt::Refused(fault) => {
                    let why = Quarantine::of_bug(&format!("the store refuses a dead letter: {fault}"));
                    return self.quarantine(part, from, why, durable).await;
                }
                Attempt::Bug(error) if to > from && part.may_pass(from) && !part.batch.is_buried(from) => {
                    let fault = RecordFault::new(Stage::Apply, Reason::RefusedByDatabase, error.to_string());
                    part.batch.bury(from, self.letter(&part, from, fault));
                    runs.push((from, to));
                }
                Attempt::Bug(error) => {
                    let why = Quarantine::of_bug(&error.to_string());
                    return self.quarantine(part, from, why, durable).await;
                }
                Attempt::Failed(error, wait) => {
                    part.batch.drop_applied(&self.declaration.tables, from);
                    return PartResult { durable, ..failed(part, error, wait) };
                }
            }
        }
        PartResult { durable, ..finished(part) }
    }

    async fn transact_run(&mut self, part: &Part, run: Range<usize>, advance: &Advance) -> Attempt {
        let declaration = self.declaration.clone();
        let letters: Vec<&DeadLetter> = part.batch.dead_letters(run.clone()).collect();
        let advances = std::slice::from_ref(advance);
        if let Some(folded) = part.batch.folded_whole(&run) {
            return self.transact(folded, letters, advances).await;
        }
        let folded =
            std::panic::catch_unwind(AssertUnwindSafe(|| part.batch.fold_run(&declaration.tables, run)));
        let Ok(folded) = folded else { return panicked("fold a batch") };
        self.transact(&folded, letters, advances).await
    }

    /// Stores a quarantine just before the record at `from`, in a transaction that changes nothing else.
    async fn quarantine(
        &mut self,
        mut part: Part,
        from: usize,
        why: Quarantine,
        durable: Durable,
    ) -> PartResult {
        let to = if from < part.batch.len() {
            part.batch.record(from).coordinates.offset.position().max(part.fence.position)
        } else {
            part.fence.position
        };
        let advance = Advance {
            partition: part.partition.clone(),
            expected: part.fence,
            to,
            topic_id: None,
            leader_epoch: None,
            quarantine: QuarantineChange::Enter(why.clone()),
        };
        let nothing = Folded::new(&self.declaration.tables);
        let (error, wait) = match self.transact(&nothing, Vec::new(), std::slice::from_ref(&advance)).await {
            Attempt::Committed => {
                let fence = part.fence.advanced_to(to);
                let end = PartEnd::Quarantined(why);
                return PartResult { fence, partition: part.partition, durable, end };
            }
            Attempt::Fenced(_) => return PartResult { durable, ..fenced(&part) },
            Attempt::Failed(error, wait) => (error, wait),
            // Not even the position row can be written, for a reason that is not understood: wait as for an operator.
            Attempt::Bug(error) => (error, Wait::Operator),
            Attempt::Refused(fault) => {
                (StoreError::Bug { action: "store a quarantine", detail: fault.to_string() }, Wait::Operator)
            }
        };
        part.batch.drop_applied(&self.declaration.tables, from);
        PartResult { durable, ..failed(part, error, wait) }
    }

    async fn transact(
        &mut self,
        folded: &Folded,
        letters: Vec<&DeadLetter>,
        advances: &[Advance],
    ) -> Attempt {
        self.turn.take().await;
        let begun = Instant::now();
        let attempt = async {
            let transaction = Transaction {
                version: &self.version,
                tables: &self.declaration.tables,
                rounds: folded.rounds(),
                dead_letters: letters,
                advances,
            };
            self.store.apply(&transaction).await
        };
        let Ok(answer) = AssertUnwindSafe(attempt).catch_unwind().await else {
            return panicked("apply a batch");
        };
        telemetry::apply_duration(&self.version, begun.elapsed());
        match answer {
            Ok(Applied::Committed { missed_updates }) => {
                telemetry::updates_missed(&self.version, missed_updates);
                Attempt::Committed
            }
            Ok(Applied::Fenced(mut lost)) => {
                lost.sort_unstable();
                lost.dedup();
                match lost.last() {
                    Some(highest) if *highest < advances.len() => Attempt::Fenced(lost),
                    _ => Attempt::Bug(StoreError::Bug {
                        action: "apply a batch",
                        detail: "fenced, without saying which partition".to_owned(),
                    }),
                }
            }
            Err(StoreError::CommitUnknown) => self.decide_commit(advances).await,
            Err(error) => match retry::classify(&error) {
                Class::Record(fault) => Attempt::Refused(fault),
                Class::Infrastructure(relief) => Attempt::Failed(error, Wait::Infrastructure(relief)),
                Class::Operator => Attempt::Failed(error, Wait::Operator),
                Class::Bug => Attempt::Bug(error),
            },
        }
    }

    /// Asks the store what became of a transaction whose COMMIT was not answered, until it says so (promise P2).
    async fn decide_commit(&mut self, advances: &[Advance]) -> Attempt {
        self.turn.give_back();
        let mut backoff = Backoff::up_to(std::time::Duration::from_secs(10));
        loop {
            match self.store.outcome(&self.version, advances).await {
                Ok(outcomes) if outcomes.len() == advances.len() => return settle(&outcomes),
                Ok(outcomes) => {
                    let detail = format!("{} outcomes for {} partitions", outcomes.len(), advances.len());
                    return Attempt::Bug(StoreError::Bug { action: "decide an unknown commit", detail });
                }
                Err(error) => {
                    tracing::warn!(version = %self.version, %error, "the outcome of a COMMIT is not known yet; asking again");
                    tokio::time::sleep(backoff.next(retry::jitter())).await;
                }
            }
        }
    }

    fn letter(&self, part: &Part, index: usize, fault: RecordFault) -> DeadLetter {
        let record = part.batch.record(index).clone();
        let source = self.declaration.source_of(&record.coordinates.topic_partition.topic);
        let schema_id = source
            .zip(record.value.as_deref())
            .and_then(|(source, value)| decode::schema_id(&self.declaration.sources[source].value, value))
            .map(|id| id.0);
        DeadLetter {
            version: self.version.clone(),
            topic_id: part.topic_id.clone(),
            record,
            fault,
            schema_id,
        }
    }
}

/// A transaction is atomic: where one partition shows that it was applied, it was applied for all, and whoever is fenced
/// lost its partition afterwards and finds out with its next transaction.
fn settle(outcomes: &[Outcome]) -> Attempt {
    if outcomes.contains(&Outcome::Applied) {
        return Attempt::Committed;
    }
    let fenced: Vec<usize> =
        outcomes.iter().enumerate().filter(|(_, o)| **o == Outcome::Fenced).map(|(index, _)| index).collect();
    if fenced.is_empty() {
        Attempt::Failed(StoreError::CommitUnknown, Wait::Infrastructure(Relief::Wait))
    } else {
        Attempt::Fenced(fenced)
    }
}

fn panicked(action: &'static str) -> Attempt {
    Attempt::Bug(StoreError::Bug { action, detail: "it panicked; the log has the place".to_owned() })
}

fn whole_advance(part: &Part) -> Advance {
    run_advance(part, 0, part.batch.len(), part.fence.position)
}

/// What a run does to the position row. The topic's id goes with records only: a quarantine for a topic that was made anew
/// must not overwrite the id that proves it. The end of a quarantine goes with the first run, its beginning with the last.
fn run_advance(part: &Part, from: usize, to: usize, start: NextOffset) -> Advance {
    let is_last = to == part.batch.len();
    Advance {
        partition: part.partition.clone(),
        expected: part.fence,
        to: part.batch.position_after(to, start),
        topic_id: part.topic_id.clone().filter(|_| to > from),
        leader_epoch: part.batch.leader_epoch(to),
        quarantine: match &part.quarantine {
            QuarantineChange::Enter(_) if !is_last => QuarantineChange::Keep,
            change => change.clone(),
        },
    }
}

impl Part {
    /// Whether an operator lets the record at `index` pass.
    fn may_pass(&self, index: usize) -> bool {
        self.may_pass == Some(self.batch.record(index).coordinates.offset.position())
    }
}

/// A part whose whole batch went through in one transaction.
fn committed(mut part: Part) -> PartResult {
    let mut durable = Durable::default();
    durable.add(&part.batch, 0..part.batch.len());
    part.fence = part.fence.advanced_to(part.batch.end());
    PartResult { durable, ..finished(part) }
}

/// A part whose last transaction went through.
fn finished(part: Part) -> PartResult {
    let end = match part.quarantine {
        QuarantineChange::Enter(why) => PartEnd::Quarantined(why),
        QuarantineChange::Keep | QuarantineChange::End => PartEnd::Applied,
    };
    PartResult { partition: part.partition, fence: part.fence, durable: Durable::default(), end }
}

fn fenced(part: &Part) -> PartResult {
    PartResult {
        partition: part.partition.clone(),
        fence: part.fence,
        durable: Durable::default(),
        end: PartEnd::Fenced,
    }
}

fn failed(part: Part, error: StoreError, wait: Wait) -> PartResult {
    PartResult {
        partition: part.partition.clone(),
        fence: part.fence,
        durable: Durable::default(),
        end: PartEnd::Failed { error, wait, left: Box::new(part) },
    }
}
