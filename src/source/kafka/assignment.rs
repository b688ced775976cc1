//! What the group gives to a member, what of it is being read and how far, and what is compared before reading goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use crate::position::{NextOffset, RecordOffset};
use crate::record::{Record, TopicPartition};
use crate::source::{LogFault, StreamId};

/// What the group gives, and what of it is being read.
#[derive(Debug, Default)]
pub(super) struct Assignment {
    /// Everything that the group gives to this member.
    pub(super) assigned: BTreeSet<TopicPartition>,
    /// What has been begun.
    pub(super) added: BTreeMap<TopicPartition, Added>,
    /// Why the client takes the log of a partition for another one than was read, until it is begun again.
    pub(super) suspected: BTreeMap<TopicPartition, String>,
}

/// A partition that has been begun.
#[derive(Debug, Clone)]
pub(super) struct Added {
    pub(super) stream: StreamId,
    /// The next offset that has not been handed over.
    pub(super) next: NextOffset,
    /// What the record just before `next` must be, until the first record has come.
    pub(super) before: Option<Before>,
    /// When it was begun.
    pub(super) begun: Instant,
    /// A fault of its log has been told: nothing more of it is handed over.
    pub(super) is_faulty: bool,
}

/// What the record just before a position must be.
#[derive(Debug, Clone)]
pub(super) struct Before {
    /// Its leader epoch.
    pub(super) epoch: i32,
    /// Why the client takes the log for another one. The record decides; where it cannot be compared, this does.
    pub(super) suspicion: Option<String>,
}

impl Added {
    /// Where the client reads: one record earlier while that is still to be compared.
    pub(super) fn fetch_from(&self) -> NextOffset {
        let before = self.before.as_ref().and_then(|_| self.next.before());
        before.map_or(self.next, RecordOffset::position)
    }

    /// Takes a record that was fetched: whether it is to be handed over, or shows that the log is another one.
    pub(super) fn take(&mut self, record: &Record) -> Result<Fetched, LogFault> {
        let offset = record.coordinates.offset;
        let is_before = self.before.is_some() && self.next.before() == Some(offset);
        if let Some(Before { epoch, suspicion }) = self.before.take() {
            let found = record.leader_epoch.filter(|_| is_before);
            let suspected = |evidence| LogFault::Rewritten { position: self.next, evidence };
            let fault = match found {
                Some(_) => LogFault::of_record_before(self.next, Some(epoch), found),
                None => suspicion.map(suspected),
            };
            if let Some(fault) = fault {
                self.is_faulty = true;
                return Err(fault);
            }
        }
        if is_before {
            return Ok(Fetched::Before);
        }
        self.next = offset.next();
        Ok(Fetched::New)
    }

    /// Everything up to an end has been handed over, or a fault of the log is to be told: there is nothing left to compare.
    pub(super) fn end_at(&mut self, end: NextOffset) -> Result<(), LogFault> {
        let suspicion = self.before.take().and_then(|before| before.suspicion);
        if let Some(evidence) = suspicion {
            self.is_faulty = true;
            return Err(LogFault::Rewritten { position: self.next, evidence });
        }
        self.next = end;
        Ok(())
    }
}

/// What a record that was fetched is to the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetched {
    /// It is to be handed over.
    New,
    /// It lies before the position: it was read to be compared.
    Before,
}

impl Assignment {
    /// What is assigned and not read.
    pub(super) fn idle(&self) -> Vec<TopicPartition> {
        self.assigned.iter().filter(|name| !self.added.contains_key(*name)).cloned().collect()
    }

    /// The list of everything that is read, each at its next offset.
    pub(super) fn list(&self) -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::new();
        for (name, added) in &self.added {
            let from = Offset::Offset(added.fetch_from().get());
            list.add_partition_offset(&name.topic, name.partition, from)?;
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{RecordCoordinates, RecordTimestamp};

    /// What becomes of records at these offsets, each with its leader epoch, when reading begins at 10.
    fn taken(before: Option<Before>, records: &[(i64, Option<i32>)]) -> Vec<Result<Fetched, LogFault>> {
        let next = NextOffset::new(10);
        let mut added = Added { stream: StreamId(1), next, before, begun: Instant::now(), is_faulty: false };
        let take = |(offset, leader_epoch): &(i64, Option<i32>)| {
            let topic_partition = TopicPartition::new("t", 0);
            added.take(&Record {
                coordinates: RecordCoordinates { topic_partition, offset: RecordOffset::new(*offset) },
                leader_epoch: *leader_epoch,
                timestamp: RecordTimestamp::Absent,
                key: None,
                value: None,
                headers: Vec::new(),
            })
        };
        records.iter().map(take).collect()
    }

    #[test]
    fn the_record_before_the_position_decides_and_else_what_the_client_suspects() {
        let suspicion = || Some("broker end offset is 7".to_owned());
        let before = |suspicion| Some(Before { epoch: 4, suspicion });
        let suspected = || {
            let (position, evidence) = (NextOffset::new(10), "broker end offset is 7".to_owned());
            Err(LogFault::Rewritten { position, evidence })
        };
        let (new, compared) = (Ok(Fetched::New), Ok(Fetched::Before));
        assert_eq!(taken(None, &[(10, Some(4)), (11, None)]), [new.clone(), new.clone()]);
        for suspicion in [None, suspicion()] {
            let same = taken(before(suspicion.clone()), &[(9, Some(4)), (10, Some(5)), (11, Some(5))]);
            assert_eq!(same, [compared.clone(), new.clone(), new.clone()], "the client was wrong");
            let other = taken(before(suspicion), &[(9, Some(5))]);
            assert!(matches!(&other[..], [Err(LogFault::Rewritten { .. })]), "{other:?}");
        }
        for first in [(10, Some(4)), (12, Some(5)), (9, None)] {
            let is_new = if first.0 == 9 { compared.clone() } else { new.clone() };
            assert_eq!(taken(before(None), &[first]), [is_new]);
            assert_eq!(taken(before(suspicion()), &[first]), [suspected()]);
        }
    }
}
