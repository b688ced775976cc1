//! APPLY: one lane's ready batches go to the store in one transaction, and what the store refuses is found.
//!
//! [`write`] takes the parts of a job, one a partition, and says what became of each. It never leaves a partition
//! undecided: an unknown COMMIT is asked about until the store answers. It runs in a task that is never cancelled.
//!
//! 1. All parts in one transaction. *Fenced*: the fenced parts are done, the others go again without them. *Refused*:
//!    every part goes by itself.
//! 2. A part by itself goes in runs, at first one run of all records. A refused run is cut in two, the first half first;
//!    a refused run of one record is the fault's record. Each run is a transaction with its own compare-and-set.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;

use super::batch::{Batch, decide};
use super::retry::{self, Backoff, Class, Relief};
use crate::dead_letter::DeadLetter;
use crate::decode;
use crate::fault::RecordFault;
use crate::fold::Folded;
use crate::position::Fence;
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
    /// Whether the first record may pass as a dead letter whatever `on_error` says.
    pub first_may_pass: bool,
}

/// What became of one part.
pub struct PartResult {
    /// The partition.
    pub partition: TopicPartition,
    /// The fence that its row holds now, as far as this owner knows.
    pub fence: Fence,
    /// Whether dead letters were written.
    pub dead_letters: usize,
    /// How it ended.
    pub end: PartEnd,
}

/// How writing a part ended.
pub enum PartEnd {
    /// Everything is durable.
    Applied,
    /// What was good is durable, and the partition is quarantined after it.
    Quarantined(Quarantine),
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
pub async fn write(store: &SharedStore, job: Job, permit: OwnedSemaphorePermit) -> Vec<PartResult> {
    let mut writer = Writer { store, version: job.version, declaration: job.declaration, permit: Some(permit) };
    writer.together(job.parts).await
}

struct Writer<'a> {
    store: &'a SharedStore,
    version: VersionKey,
    declaration: Arc<Declaration>,
    /// Given back while an unknown COMMIT is asked about, so that a silent store stops nobody else's turn.
    permit: Option<OwnedSemaphorePermit>,
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
                Attempt::Refused(_) | Attempt::Bug(_) => {
                    for part in parts {
                        results.push(self.alone(part).await);
                    }
                    return results;
                }
                Attempt::Failed(error, wait) => {
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
            merged.merge(part.batch.folded());
        }
        let letters = parts.iter().flat_map(|part| part.batch.dead_letters(0..part.batch.len())).collect();
        self.transact(&merged, letters, &advances).await
    }

    /// Writes one partition's part, cutting it where the store refuses.
    async fn alone(&mut self, mut part: Part) -> PartResult {
        let total = part.batch.len();
        let most = part.most.max(1);
        let mut dead_letters = 0;
        // Runs still to do, the next one last. An empty batch is one empty run: its end may lie ahead.
        let mut runs: Vec<(usize, usize)> = (0..total.max(1))
            .step_by(most)
            .map(|from| (from, (from + most).min(total)))
            .rev()
            .collect();
        let start = part.fence.position;
        while let Some((from, to)) = runs.pop() {
            let last = to == total;
            let advance = Advance {
                partition: part.partition.clone(),
                expected: part.fence,
                to: part.batch.position_after(to, start),
                topic_id: part.topic_id.clone(),
                leader_epoch: part.batch.leader_epoch(to),
                quarantine: if last { part.quarantine.clone() } else { QuarantineChange::Keep },
            };
            let folded = part.batch.fold_run(&self.declaration.tables, from..to);
            let letters: Vec<&DeadLetter> = part.batch.dead_letters(from..to).collect();
            let count = letters.len();
            match self.transact(&folded, letters, std::slice::from_ref(&advance)).await {
                Attempt::Committed => {
                    part.fence = part.fence.advanced_to(advance.to);
                    dead_letters += count;
                }
                Attempt::Fenced(_) => return PartResult { dead_letters, ..fenced(&part) },
                Attempt::Refused(_) if to - from > 1 => {
                    let middle = from + (to - from) / 2;
                    runs.push((middle, to));
                    runs.push((from, middle));
                }
                Attempt::Refused(fault) if to > from => {
                    let let_pass = part.first_may_pass && from == 0;
                    match decide(self.declaration.on_error, let_pass) {
                        OnError::DeadLetter => {
                            part.batch.bury(from, self.letter(&part, from, *fault));
                            runs.push((from, to));
                        }
                        OnError::Quarantine => {
                            let why = quarantine_for(&self.version, part.batch.record(from), &fault);
                            return self.quarantine(part, from, why, dead_letters).await;
                        }
                    }
                }
                Attempt::Refused(fault) => {
                    let why = bug_quarantine(&format!("the store refused a transaction without changes: {fault}"));
                    return self.quarantine(part, from, why, dead_letters).await;
                }
                Attempt::Failed(error, wait) => {
                    part.batch.drop_applied(&self.declaration.tables, from);
                    part.first_may_pass &= from == 0;
                    return PartResult { dead_letters, ..failed(part, error, wait) };
                }
                Attempt::Bug(error) => {
                    let why = bug_quarantine(&error.to_string());
                    return self.quarantine(part, from, why, dead_letters).await;
                }
            }
        }
        PartResult { dead_letters, ..finished(part) }
    }

    /// Stores a quarantine at the current position, in a transaction that changes nothing else.
    async fn quarantine(&mut self, mut part: Part, from: usize, why: Quarantine, dead_letters: usize) -> PartResult {
        let advance = Advance {
            partition: part.partition.clone(),
            expected: part.fence,
            to: part.fence.position,
            topic_id: None,
            leader_epoch: None,
            quarantine: QuarantineChange::Enter(why.clone()),
        };
        let nothing = Folded::new(&self.declaration.tables);
        match self.transact(&nothing, Vec::new(), std::slice::from_ref(&advance)).await {
            Attempt::Committed => PartResult {
                fence: part.fence.advanced_to(part.fence.position),
                partition: part.partition,
                dead_letters,
                end: PartEnd::Quarantined(why),
            },
            Attempt::Fenced(_) => PartResult { dead_letters, ..fenced(&part) },
            Attempt::Failed(error, wait) => {
                part.batch.drop_applied(&self.declaration.tables, from);
                PartResult { dead_letters, ..failed(part, error, wait) }
            }
            // Not even the position row can be written for a reason that is not understood: wait like for an operator.
            Attempt::Refused(fault) => {
                part.batch.drop_applied(&self.declaration.tables, from);
                let error = StoreError::Bug { action: "store a quarantine", detail: fault.to_string() };
                PartResult { dead_letters, ..failed(part, error, Wait::Operator) }
            }
            Attempt::Bug(error) => {
                part.batch.drop_applied(&self.declaration.tables, from);
                PartResult { dead_letters, ..failed(part, error, Wait::Operator) }
            }
        }
    }

    async fn transact(&mut self, folded: &Folded, letters: Vec<&DeadLetter>, advances: &[Advance]) -> Attempt {
        let begun = Instant::now();
        let transaction = Transaction {
            version: &self.version,
            tables: &self.declaration.tables,
            rounds: folded.rounds(),
            dead_letters: letters,
            published: Vec::new(),
            advances,
        };
        let answer = self.store.apply(&transaction).await;
        telemetry::apply_duration(&self.version, begun.elapsed());
        match answer {
            Ok(Applied::Committed) => Attempt::Committed,
            Ok(Applied::Fenced(lost)) => Attempt::Fenced(lost),
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
        self.permit = None;
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
        DeadLetter { version: self.version.clone(), topic_id: part.topic_id.clone(), record, fault, schema_id }
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

fn whole_advance(part: &Part) -> Advance {
    Advance {
        partition: part.partition.clone(),
        expected: part.fence,
        to: part.batch.end(),
        topic_id: part.topic_id.clone(),
        leader_epoch: part.batch.leader_epoch(part.batch.len()),
        quarantine: part.quarantine.clone(),
    }
}

/// A part whose whole batch went through in one transaction.
fn committed(mut part: Part) -> PartResult {
    let dead_letters = part.batch.dead_letters(0..part.batch.len()).count();
    part.fence = part.fence.advanced_to(part.batch.end());
    PartResult { dead_letters, ..finished(part) }
}

/// A part whose last transaction went through.
fn finished(part: Part) -> PartResult {
    let end = match part.quarantine {
        QuarantineChange::Enter(why) => PartEnd::Quarantined(why),
        QuarantineChange::Keep | QuarantineChange::End => PartEnd::Applied,
    };
    PartResult { partition: part.partition, fence: part.fence, dead_letters: 0, end }
}

fn fenced(part: &Part) -> PartResult {
    PartResult { partition: part.partition.clone(), fence: part.fence, dead_letters: 0, end: PartEnd::Fenced }
}

fn failed(part: Part, error: StoreError, wait: Wait) -> PartResult {
    PartResult {
        partition: part.partition.clone(),
        fence: part.fence,
        dead_letters: 0,
        end: PartEnd::Failed { error, wait, left: Box::new(part) },
    }
}

/// The quarantine that a record causes.
#[must_use]
pub fn quarantine_for(version: &VersionKey, record: &crate::record::Record, fault: &RecordFault) -> Quarantine {
    let at = &record.coordinates;
    let command = format!("projector resume {} --partition {}", version.projection, at.topic_partition);
    Quarantine {
        reason: fault.reason.as_str().to_owned(),
        detail: format!("record {at}: {fault}; `{command}` tries it again, with `--dead-letter` it is passed"),
    }
}

/// The quarantine for something that must not happen.
#[must_use]
pub fn bug_quarantine(detail: &str) -> Quarantine {
    Quarantine {
        reason: "bug".to_owned(),
        detail: format!("{detail}; please report it, then `projector resume` tries the same records again"),
    }
}
