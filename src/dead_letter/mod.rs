//! Records that cannot be used: kept byte for byte, listed, published to their topic.
//!
//! A dead letter is a row of `projector_dead_letters`, written in the transaction that lets the position pass its record
//! (promise P5). [`publisher`] sends it to the dead-letter topic afterwards, at least once.

pub mod headers;
pub mod publisher;

use crate::fault::RecordFault;
use crate::record::Record;
use crate::store::{DeadLetterKey, VersionKey};

/// A record that a version could not use.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The version that could not use it.
    pub version: VersionKey,
    /// The topic's id, where it is known.
    pub topic_id: Option<String>,
    /// The record, byte for byte.
    pub record: Record,
    /// Why.
    pub fault: RecordFault,
    /// The id of the value's schema, where the record names one.
    pub schema_id: Option<u32>,
}

impl DeadLetter {
    /// What identifies this dead letter.
    #[must_use]
    pub fn key(&self) -> DeadLetterKey {
        DeadLetterKey {
            version: self.version.clone(),
            partition: self.record.coordinates.topic_partition.clone(),
            topic_id: self.topic_id.clone(),
            offset: self.record.coordinates.offset,
        }
    }
}
