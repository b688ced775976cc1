//! Records on their way into batches, and the schemas that they wait for.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use super::{Next, Runner, SCHEMA_CEILING, SchemaNews, SchemaWait, UNKNOWN_SCHEMA_TTL, Wake};
use crate::dead_letter::DeadLetter;
use crate::decode::SchemaId;
use crate::decode::registry::RegistryError;
use crate::pipeline::batch::{Outcome, Read, Taken, decide};
use crate::pipeline::partition::{Flow, Partition, State, Waiting};
use crate::pipeline::retry;
use crate::pipeline::retry::Backoff;
use crate::projection::OnError;
use crate::record::{Record, TopicPartition};
use crate::source::{Consumed, StreamId};
use crate::store::{Quarantine, QuarantineChange};
use crate::telemetry::{self, Retried};

impl Runner {
    pub(super) fn on_records(&mut self, chunk: Vec<Consumed>) {
        for item in chunk {
            match item {
                Consumed::Record { stream, record } => {
                    let name = record.coordinates.topic_partition.clone();
                    if self.is_expected(&name, stream) {
                        self.take(&name, record);
                    } else {
                        self.probed(&name, stream, &record);
                    }
                }
                Consumed::End { stream, partition, end } => {
                    if self.is_expected(&partition, stream)
                        && let Some(flow) = self.flow(&partition)
                    {
                        if let Some(waiting) = &mut flow.waiting {
                            waiting.end = Some(end);
                        } else {
                            flow.open.extend_to(end);
                            flow.waits_for_record = false;
                        }
                    }
                }
            }
        }
    }

    /// The record that a quarantined partition waits at tells how long it has been waiting.
    fn probed(&mut self, name: &TopicPartition, stream: StreamId, record: &Record) {
        if let Some(Partition { state: State::Quarantined(stopped), .. }) = self.partitions.get_mut(name)
            && stopped.probe == stream
        {
            stopped.probe = StreamId::NONE;
            stopped.oldest = record.timestamp.millis();
            self.control.pause(name);
        }
    }

    pub(super) fn flow(&mut self, name: &TopicPartition) -> Option<&mut Flow> {
        match self.partitions.get_mut(name) {
            Some(Partition { state: State::Flowing(flow), .. }) => Some(flow),
            _ => None,
        }
    }

    pub(super) fn is_expected(&mut self, name: &TopicPartition, stream: StreamId) -> bool {
        self.flow(name).is_some_and(|flow| flow.stream == stream && flow.accepts())
    }

    pub(super) fn take(&mut self, name: &TopicPartition, record: Record) {
        let Some(flow) = self.flow(name) else { return };
        let offset = record.coordinates.offset;
        if flow.taken.is_past(offset) {
            return;
        }
        flow.taken = offset.next();
        flow.taken_epoch = record.leader_epoch.or(flow.taken_epoch);
        if flow.next_needed().is_past(offset) {
            // An end was reported too far: going on would lose this record without a word.
            let detail = format!(
                "record {} came after its partition was said to be read up to it",
                record.coordinates
            );
            flow.quarantine = QuarantineChange::Enter(Quarantine::of_bug(&detail));
            self.control.pause(name);
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
    pub(super) fn read(&mut self, name: &TopicPartition, record: Record) {
        let at = record.coordinates.clone();
        let timestamp = record.timestamp.millis();
        let Some(Partition { state: State::Flowing(flow), .. }) = self.partitions.get_mut(name) else {
            return;
        };
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
                OnError::Quarantine => Next::Stop(Quarantine::of_record(&record.coordinates, &fault)),
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
            Next::Stop(Quarantine::of_bug(&format!("reading record {at} panicked")))
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
    pub(super) fn hold_back(&mut self) {
        let cap = self.shared.partition_bytes;
        for (name, partition) in &mut self.partitions {
            let State::Flowing(flow) = &mut partition.state else { continue };
            if flow.accepts() && flow.is_waiting() && flow.bytes() > cap {
                flow.is_held = true;
                self.control.pause(name);
            } else if flow.is_held && !flow.is_waiting() && !flow.is_in_flight() {
                flow.is_held = false;
                let from = flow.next_needed();
                flow.restart(self.control.begin(name, from, flow.taken_epoch), from);
            }
        }
    }

    pub(super) fn fetch(&mut self, id: SchemaId) {
        if self.fetching.contains_key(&id) {
            return;
        }
        self.fetching.insert(id, SchemaWait::Quiet);
        self.ask_registry(id);
    }

    /// Asks until the schema has come or the registry has said for a bounded time that it does not know it. Time in which
    /// it did not answer does not count.
    pub(super) fn ask_registry(&self, id: SchemaId) {
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
                drop(tasks.0.send(Wake::Schema(
                    id,
                    SchemaNews::Trouble(error.to_string(), retry::class_of_registry(&error)),
                )));
                tokio::time::sleep(backoff.next(retry::jitter())).await;
            }
            Wake::Schema(id, SchemaNews::Arrived)
        });
    }

    pub(super) fn on_schema(&mut self, id: SchemaId, news: SchemaNews) {
        let names: Vec<TopicPartition> = self
            .partitions
            .iter()
            .filter(|(_, partition)| {
                matches!(&partition.state, State::Flowing(flow) if flow.waiting.as_ref().is_some_and(|w| w.schema == id))
            })
            .map(|(name, _)| name.clone())
            .collect();
        match news {
            SchemaNews::Trouble(why, class) => {
                telemetry::retry(&self.version, class, Retried::Registry);
                if self.fetching.get(&id) == Some(&SchemaWait::Quiet) {
                    self.fetching.insert(id, SchemaWait::Told);
                    tracing::warn!(version = %self.version, schema = id.0, %why, "a schema is not there; its partitions wait");
                }
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
    pub(super) fn go_on(&mut self, name: &TopicPartition) {
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
}
