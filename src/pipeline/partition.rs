//! The state of one partition in its runner: one enum, so that no two states can hold at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::batch::Batch;
use super::retry::Backoff;
use super::writer::Part;
use crate::decode::SchemaId;
use crate::position::{Fence, NextOffset};
use crate::record::Record;
use crate::source::StreamId;
use crate::store::{PositionRow, Quarantine, QuarantineChange};

/// A partition that the group assigns to this member.
pub struct Partition {
    /// Which writer it belongs to: partitions of a lane share transactions.
    pub lane: usize,
    /// What it is doing.
    pub state: State,
    /// The position that has been committed to Kafka, as far as this member knows.
    pub committed: Option<NextOffset>,
}

/// What a partition is doing.
pub enum State {
    /// It is being claimed in the store, or waits for the next attempt.
    Claiming(Backoff),
    /// Records flow.
    Flowing(Box<Flow>),
    /// It waits for an operator; stored in its position row.
    Quarantined(Box<Stopped>),
}

/// A partition that has stopped until a command decides.
pub struct Stopped {
    /// The fence that its row holds.
    pub fence: Fence,
    /// Its boundary.
    pub boundary: NextOffset,
    /// The topic's id that the position belongs to, where it is known.
    pub topic_id: Option<String>,
    /// The time of the oldest record that waits, where it is known: milliseconds since 1970-01-01 UTC.
    pub oldest: Option<i64>,
    /// The stream that is read for one record, to learn that time after a restart; else [`StreamId::NONE`].
    pub probe: StreamId,
    /// The leader epoch of the last record that was applied, where it is known.
    pub applied_epoch: Option<i32>,
    /// Why.
    pub why: Quarantine,
}

/// A partition whose records flow, or would if a fault outside passed.
pub struct Flow {
    /// The fence that its row holds, once what is in flight has been taken off.
    pub fence: Fence,
    /// Where a new version has caught up.
    pub boundary: NextOffset,
    /// The stream of records that is current; records of others are dropped.
    pub stream: StreamId,
    /// The offset behind the last record that was taken from this stream, or where it began.
    pub taken: NextOffset,
    /// The leader epoch of the last record that was taken or, before one was, applied; where it is known.
    pub taken_epoch: Option<i32>,
    /// The leader epoch of the last record that was applied, where it is known.
    pub applied_epoch: Option<i32>,
    /// The batch that grows.
    pub open: Batch,
    /// Cancelled when what is in flight should end with the transaction that runs.
    pub stop: CancellationToken,
    /// Since when a transaction is in flight, if one is.
    pub in_flight_since: Option<Instant>,
    /// Bytes that are in flight, for the budget.
    pub bytes_in_flight: usize,
    /// The time of the oldest record in flight.
    pub oldest_in_flight: Option<i64>,
    /// The time of the oldest record of the last batch that was applied: what is behind it is not older.
    pub last_applied: Option<i64>,
    /// The time of the record that the partition is about to be quarantined for.
    pub culprit: Option<i64>,
    /// The topic's id that the position belongs to, where it is known.
    pub topic_id: Option<String>,
    /// What a failed transaction has left, and when it is tried again.
    pub retry: Option<Retry>,
    /// Delays of retries, kept until a transaction succeeds.
    pub backoff: Option<Backoff>,
    /// The most records of one transaction while smaller batches are tried.
    pub most: usize,
    /// Records that wait for a schema, in order, and the schema.
    pub waiting: Option<Waiting>,
    /// What the next transaction does to the quarantine.
    pub quarantine: QuarantineChange,
    /// The record at this position passes as a dead letter, whatever `on_error` says, if it cannot be used.
    pub may_pass: Option<NextOffset>,
    /// Nothing more is taken, because what is held has to go first; the source has paused the partition.
    pub is_held: bool,
    /// Too many dead letters wait for their topic.
    pub is_backlogged: bool,
    /// The end of the quarantine waits for the record that caused it, so that both go into one transaction.
    pub waits_for_record: bool,
}

/// A part that waits for a fault outside to pass.
pub struct Retry {
    /// When to try again.
    pub at: Instant,
    /// What to try.
    pub part: Box<Part>,
    /// Why it waits: shown by status.
    pub why: String,
}

/// Records that wait for a schema.
pub struct Waiting {
    /// The schema.
    pub schema: SchemaId,
    /// Why it has not come yet, once that is known.
    pub why: Option<String>,
    /// The records in order; the first is the one that needs the schema.
    pub records: VecDeque<Record>,
    /// The end of the partition, if it has been seen behind them.
    pub end: Option<NextOffset>,
    /// Bytes held.
    pub bytes: usize,
}

impl Flow {
    /// A partition that has just been claimed.
    #[must_use]
    pub fn new(row: &PositionRow, stream: StreamId, open: Batch, most: usize) -> Self {
        Self {
            fence: row.fence,
            boundary: row.boundary,
            stream,
            taken: open.end(),
            taken_epoch: row.leader_epoch,
            applied_epoch: row.leader_epoch,
            open,
            stop: CancellationToken::new(),
            in_flight_since: None,
            bytes_in_flight: 0,
            oldest_in_flight: None,
            last_applied: None,
            culprit: None,
            topic_id: row.topic_id.clone(),
            retry: None,
            backoff: None,
            most,
            waiting: None,
            quarantine: QuarantineChange::Keep,
            may_pass: None,
            is_held: false,
            is_backlogged: false,
            waits_for_record: false,
        }
    }

    /// Whether a transaction is in flight.
    #[must_use]
    pub const fn is_in_flight(&self) -> bool {
        self.in_flight_since.is_some()
    }

    /// Whether a transaction could be started now.
    #[must_use]
    pub fn is_ready(&self, now: Instant) -> bool {
        if self.is_in_flight() || self.is_backlogged {
            return false;
        }
        match &self.retry {
            Some(retry) => retry.at <= now,
            None if self.open.end() > self.fence.position => true,
            None => match self.quarantine {
                QuarantineChange::Keep => false,
                QuarantineChange::Enter(_) => true,
                QuarantineChange::End => !self.waits_for_record,
            },
        }
    }

    /// Whether more records may be added to the open batch.
    #[must_use]
    pub fn accepts(&self) -> bool {
        !self.is_held && !matches!(self.quarantine, QuarantineChange::Enter(_))
    }

    /// Whether what is held waits for something outside.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.waiting.is_some() || self.retry.is_some() || self.is_backlogged
    }

    /// Goes on with another stream of the same log.
    pub fn restart(&mut self, stream: StreamId, from: NextOffset) {
        self.stream = stream;
        self.taken = from;
    }

    /// The first offset that is not held.
    #[must_use]
    pub fn next_needed(&self) -> NextOffset {
        let waiting = self.waiting.as_ref();
        let last =
            waiting.and_then(|waiting| waiting.records.back()).map(|record| record.coordinates.offset.next());
        last.unwrap_or_else(|| self.open.end())
            .max(waiting.and_then(|waiting| waiting.end).unwrap_or(NextOffset::ZERO))
    }

    /// Bytes that this partition holds, for the budget.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.open.bytes()
            + self.bytes_in_flight
            + self.waiting.as_ref().map_or(0, |waiting| waiting.bytes)
            + self.retry.as_ref().map_or(0, |retry| retry.part.batch.bytes())
    }

    /// Why the partition is blocked, if it is.
    #[must_use]
    pub fn blocked(&self) -> Option<String> {
        const SLOW: Duration = Duration::from_secs(10);
        let schema = || self.waiting.as_ref().and_then(|waiting| waiting.why.clone());
        let slow = || {
            let is_slow = self.in_flight_since.is_some_and(|since| since.elapsed() > SLOW);
            is_slow.then(|| "the read store has not answered for more than 10 s".to_owned())
        };
        let backlog = || {
            let why = "`dead_letter.max_waiting` dead letters wait for their topic, which does not take them";
            self.is_backlogged.then(|| why.to_owned())
        };
        self.retry.as_ref().map(|retry| retry.why.clone()).or_else(schema).or_else(slow).or_else(backlog)
    }

    /// The time of the oldest record that is not applied, as far as it is known: milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn oldest_pending(&self) -> Option<i64> {
        self.oldest_held().or(self.last_applied)
    }

    /// The time of the oldest record that is read and not applied, milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn oldest_held(&self) -> Option<i64> {
        let waiting =
            self.waiting.as_ref().and_then(|w| w.records.iter().filter_map(|r| r.timestamp.millis()).min());
        let retry = self.retry.as_ref().and_then(|retry| retry.part.batch.oldest());
        let held = [self.oldest_in_flight, retry, self.open.oldest(), waiting, self.culprit];
        held.into_iter().flatten().min()
    }
}
