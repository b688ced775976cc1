//! A record: bytes from Kafka with their coordinates, before anything is known about their meaning.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;

use crate::position::RecordOffset;

/// One partition of one topic. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's number, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// Names a partition of a topic.
    #[must_use]
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }
}

/// Printed as `topic:partition`, the form that commands take.
impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.topic, self.partition)
    }
}

/// Where a record stands in the log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordCoordinates {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The record's own offset.
    pub offset: RecordOffset,
}

/// Printed as `topic:partition:offset`.
impl fmt::Display for RecordCoordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.topic_partition, self.offset)
    }
}

/// A record's time: milliseconds since 1970-01-01 UTC, and who set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordTimestamp {
    /// Set by the producer.
    Create(i64),
    /// Set by the broker when it appended the record.
    LogAppend(i64),
    /// The record carries none (Kafka's -1).
    Absent,
}

impl RecordTimestamp {
    /// Milliseconds since 1970-01-01 UTC, if the record carries a time.
    #[must_use]
    pub const fn millis(self) -> Option<i64> {
        match self {
            Self::Create(millis) | Self::LogAppend(millis) => Some(millis),
            Self::Absent => None,
        }
    }
}

/// One header. Names may repeat; order is kept; a value may be null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The header's name.
    pub name: ByteString,
    /// The header's bytes, exactly as produced.
    pub value: Option<Bytes>,
}

/// Bytes from Kafka, with everything that a dead letter must keep (promise P5).
///
/// `Debug` prints coordinates and lengths only: payloads stay out of logs (promise P10).
#[derive(Clone)]
pub struct Record {
    /// Where the record stands.
    pub coordinates: RecordCoordinates,
    /// The partition leader's epoch when the record was appended, where the client knows it.
    pub leader_epoch: Option<i32>,
    /// The record's time.
    pub timestamp: RecordTimestamp,
    /// The key's bytes; `None` is Kafka's null.
    pub key: Option<Bytes>,
    /// The value's bytes; `None` is Kafka's null, a tombstone. An empty value is not one.
    pub value: Option<Bytes>,
    /// The headers in order.
    pub headers: Vec<Header>,
}

impl Record {
    /// Bytes that this record occupies in a queue: key, value and headers, and a constant for the rest.
    #[must_use]
    pub fn size(&self) -> usize {
        const OVERHEAD: usize = 128;
        let headers: usize =
            self.headers.iter().map(|h| h.name.len() + h.value.as_ref().map_or(0, Bytes::len)).sum();
        OVERHEAD
            + headers
            + self.key.as_ref().map_or(0, Bytes::len)
            + self.value.as_ref().map_or(0, Bytes::len)
    }

    /// The last value of the header `name`, as Kafka clients agree on (a later header wins).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&Bytes> {
        self.headers.iter().rev().find(|header| header.name == name).and_then(|header| header.value.as_ref())
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("at", &format_args!("{}", self.coordinates))
            .field("key_bytes", &self.key.as_ref().map(Bytes::len))
            .field("value_bytes", &self.value.as_ref().map(Bytes::len))
            .field("headers", &self.headers.len())
            .finish_non_exhaustive()
    }
}
