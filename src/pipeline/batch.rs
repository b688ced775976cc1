//! BATCH: a contiguous run of one partition's records, read and folded.
//!
//! [`Reader`] takes a record through decode, map, validate and judge; [`Batch`] folds what comes out. A batch keeps each
//! record with its own changes until its transaction has ended, so that it can be cut when the database refuses it.

use std::ops::Range;
use std::sync::Arc;

use super::tally::Tally;
use crate::dead_letter::DeadLetter;
use crate::decode::{self, Decoder, SchemaId, Undecoded};
use crate::fault::{Reason, RecordFault, Stage};
use crate::fold::{Folded, RowChange, judge, validate};
use crate::position::NextOffset;
use crate::projection::{Changes, Declaration, Event, Mapped, OnError, Projection, Table, UnknownEvents};
use crate::record::Record;
use crate::store::VersionKey;

/// Takes records of one version through the stages before fold. Pure but for the cache of schemas.
pub struct Reader {
    projection: Arc<dyn Projection>,
    version: VersionKey,
    decoders: Arc<[Decoder]>,
    tally: Arc<Tally>,
    changes: Changes,
}

/// What reading a record gave.
pub enum Read {
    /// It can be added to a batch.
    Taken(Taken),
    /// It waits for a schema; read it again when that has arrived.
    AwaitsSchema(SchemaId, Box<Record>),
}

/// A record that has been read.
pub struct Taken {
    /// The record, byte for byte.
    pub record: Record,
    /// What is to be done about it.
    pub outcome: Outcome,
}

/// What is to be done about a record that has been read.
pub enum Outcome {
    /// These changes, perhaps none.
    Changes(Vec<RowChange>),
    /// It cannot be used.
    Fault(Box<RecordFault>, Option<SchemaId>),
}

impl Reader {
    /// A reader for a projection; `decoders` in the order of its sources.
    #[must_use]
    pub fn new(
        projection: Arc<dyn Projection>,
        version: VersionKey,
        decoders: Arc<[Decoder]>,
        tally: Arc<Tally>,
    ) -> Self {
        Self { projection, version, decoders, tally, changes: Changes::new() }
    }

    /// The projection's declaration.
    #[must_use]
    pub fn declaration(&self) -> &Declaration {
        self.projection.declaration()
    }

    /// Takes one record through decode, map, validate and judge.
    pub fn read(&mut self, record: Record) -> Read {
        let outcome = match self.stages(&record) {
            Ok(changes) => Outcome::Changes(changes),
            Err(Undecoded::AwaitsSchema(id)) => return Read::AwaitsSchema(id, Box::new(record)),
            Err(Undecoded::Fault(fault)) => {
                let schema = self.schema_id(&record);
                Outcome::Fault(Box::new(fault), schema)
            }
        };
        Read::Taken(Taken { record, outcome })
    }

    fn stages(&mut self, record: &Record) -> Result<Vec<RowChange>, Undecoded> {
        let declaration = self.projection.declaration();
        let topic = &record.coordinates.topic_partition.topic;
        let Some(source) = declaration.source_of(topic) else {
            let detail = format!("no source of {} reads topic {topic}", declaration.label());
            return Err(Undecoded::Fault(RecordFault::new(Stage::Decode, Reason::UnknownType, detail)));
        };
        let decoded = self.decoders[source].decode(record)?;
        let event = Event {
            source,
            record,
            event_type: decoded.event_type.as_deref(),
            key: decoded.key.as_ref(),
            value: decoded.value.as_ref(),
        };
        self.changes.take();
        let mapped = self.projection.map(&event, &mut self.changes).map_err(Undecoded::Fault)?;
        if mapped == Mapped::Ignored {
            let name = event.event_type.unwrap_or("tombstone");
            refuse_unknown(declaration, name).map_err(Undecoded::Fault)?;
            self.tally.ignored(&self.version, topic, name);
        }
        let changes = validate(&declaration.tables, self.changes.take()).map_err(Undecoded::Fault)?;
        match judge::judge() {
            judge::Verdict::Apply => Ok(changes),
        }
    }

    fn schema_id(&self, record: &Record) -> Option<SchemaId> {
        let declaration = self.projection.declaration();
        let source = declaration.source_of(&record.coordinates.topic_partition.topic)?;
        decode::schema_id(&declaration.sources[source].value, record.value.as_deref()?)
    }
}

fn refuse_unknown(declaration: &Declaration, event_type: &str) -> Result<(), RecordFault> {
    match &declaration.unknown_events {
        UnknownEvents::DeadLetter { except } if event_type != "tombstone" => {
            if except.iter().any(|ignored| ignored == event_type) {
                return Ok(());
            }
            let detail = format!("no handler is declared for events of type {event_type}");
            Err(RecordFault::new(Stage::Map, Reason::UnknownEvent, detail))
        }
        UnknownEvents::Ignore | UnknownEvents::DeadLetter { .. } => Ok(()),
    }
}

/// A contiguous run of one partition's records, folded.
pub struct Batch {
    records: Vec<Kept>,
    folded: Folded,
    /// A record has been buried since: the folded changes still hold its own.
    is_stale: bool,
    end: NextOffset,
    bytes: usize,
}

/// A record in a batch: what is kept until the transaction has ended.
struct Kept {
    record: Record,
    changes: Vec<RowChange>,
    dead_letter: Option<Box<DeadLetter>>,
    bytes: usize,
}

impl Batch {
    /// An empty batch that begins at `position`.
    #[must_use]
    pub fn new(tables: &[Table], position: NextOffset) -> Self {
        Self { records: Vec::new(), folded: Folded::new(tables), is_stale: false, end: position, bytes: 0 }
    }

    /// Adds the next record of the partition.
    pub fn push(&mut self, record: Record, changes: Vec<RowChange>) {
        // Changes count twice: as the record's own, and folded.
        let bytes = record.size() + 2 * changes.iter().map(|change| change.change.size()).sum::<usize>();
        for change in &changes {
            self.folded.push(change.clone());
        }
        self.end = record.coordinates.offset.next();
        self.bytes += bytes;
        self.records.push(Kept { record, changes, dead_letter: None, bytes });
    }

    /// Adds the next record of the partition as a dead letter.
    pub fn push_dead_letter(&mut self, letter: DeadLetter) {
        let bytes = 2 * letter.record.size();
        self.end = letter.record.coordinates.offset.next();
        self.bytes += bytes;
        let record = letter.record.clone();
        self.records.push(Kept { record, changes: Vec::new(), dead_letter: Some(Box::new(letter)), bytes });
    }

    /// Moves the end over offsets that hold no record for us. An end that is not ahead is ignored.
    pub fn extend_to(&mut self, end: NextOffset) {
        self.end = self.end.max(end);
    }

    /// The position once this batch is applied.
    #[must_use]
    pub const fn end(&self) -> NextOffset {
        self.end
    }

    /// Records in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the batch holds no record. Its end may still lie ahead.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes that the batch holds.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The time of the oldest of some of its records, milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn oldest_timestamp(&self, run: Range<usize>) -> Option<i64> {
        self.records[run].iter().filter_map(|kept| kept.record.timestamp.millis()).min()
    }

    /// The time of its oldest record, milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn oldest(&self) -> Option<i64> {
        self.oldest_timestamp(0..self.records.len())
    }

    /// The folded changes of the whole batch.
    #[must_use]
    pub const fn folded(&self) -> &Folded {
        &self.folded
    }

    /// The folded changes where `run` is the whole batch and none of its records has been buried since it was folded.
    #[must_use]
    pub fn folded_whole(&self, run: &Range<usize>) -> Option<&Folded> {
        (*run == (0..self.records.len()) && !self.is_stale).then_some(&self.folded)
    }

    /// The changes of some of its records, folded anew.
    #[must_use]
    pub fn fold_run(&self, tables: &[Table], run: Range<usize>) -> Folded {
        let mut folded = Folded::new(tables);
        for change in self.records[run].iter().flat_map(|kept| &kept.changes) {
            folded.push(change.clone());
        }
        folded
    }

    /// The position after the first `count` records: the end of the whole batch for all of them.
    #[must_use]
    pub fn position_after(&self, count: usize, start: NextOffset) -> NextOffset {
        if count == self.records.len() {
            self.end
        } else {
            count.checked_sub(1).map_or(start, |last| self.records[last].record.coordinates.offset.next())
        }
    }

    /// The leader epoch of the last of the first `count` records, where it is known.
    #[must_use]
    pub fn leader_epoch(&self, count: usize) -> Option<i32> {
        count.checked_sub(1).and_then(|last| self.records[last].record.leader_epoch)
    }

    /// The dead letters among some of its records.
    pub fn dead_letters(&self, run: Range<usize>) -> impl Iterator<Item = &DeadLetter> {
        self.records[run].iter().filter_map(|kept| kept.dead_letter.as_deref())
    }

    /// The record at `index`.
    #[must_use]
    pub fn record(&self, index: usize) -> &Record {
        &self.records[index].record
    }

    /// Whether the record at `index` is a dead letter.
    #[must_use]
    pub fn is_buried(&self, index: usize) -> bool {
        self.records[index].dead_letter.is_some()
    }

    /// Makes the record at `index` a dead letter: none of its changes is applied.
    pub fn bury(&mut self, index: usize, letter: DeadLetter) {
        self.is_stale |= !self.records[index].changes.is_empty();
        self.records[index].changes.clear();
        self.records[index].dead_letter = Some(Box::new(letter));
    }

    /// Drops the first `count` records, which have been applied, and folds the rest anew.
    pub fn drop_applied(&mut self, tables: &[Table], count: usize) {
        self.records.drain(..count);
        self.bytes = self.records.iter().map(|kept| kept.bytes).sum();
        self.folded = self.fold_run(tables, 0..self.records.len());
        self.is_stale = false;
    }
}

/// What happens to a record that cannot be used, given the policy and whether an operator let this one pass.
#[must_use]
pub const fn decide(on_error: OnError, let_pass: bool) -> OnError {
    if let_pass { OnError::DeadLetter } else { on_error }
}
