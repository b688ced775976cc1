//! DECODE: bytes become events.
//!
//! [`Decoder`] is made once for each source of a projection. It is synchronous and does no I/O: a schema that is not
//! cached makes it return [`Undecoded::AwaitsSchema`], the pipeline fetches it with [`Schemas::fetch`] while other
//! partitions go on, and asks again.
//!
//! Only the fields that a mapping wants are built. Limits hold for what is stepped over as well, except that the texts in
//! Avro that nobody wants are not looked at.

mod avro;
mod cursor;
mod decoder;
mod fields;
mod flaw;
mod framing;
mod http_registry;
mod json;
mod logical;
mod plan;
pub mod registry;
mod schema;
#[cfg(test)]
mod tests;

use std::fmt;

use bytestring::ByteString;

pub use decoder::{Decoder, DecoderError};
pub use framing::schema_id;
pub use registry::Schemas;

use crate::fault::RecordFault;
use crate::projection::Value;

/// A decoded record.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The type by the source's rule; `None` for a tombstone.
    pub event_type: Option<ByteString>,
    /// The key, if the mapping reads it and the record has one.
    pub key: Option<Value>,
    /// The value, with the wanted fields; `None` for a tombstone.
    pub value: Option<Value>,
}

/// Why a record has not been decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undecoded {
    /// It cannot be: a dead letter.
    Fault(RecordFault),
    /// It waits for the schema with this id.
    AwaitsSchema(SchemaId),
}

/// A schema's id in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchemaId(pub u32);

impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The highest [`Limits::max_depth`] that can be configured: decoding and what comes after it need stack for each level.
pub const MAX_DEPTH_CEILING: usize = 256;

/// Bounds that hold before anything is allocated (promise P9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest key, value or header, in bytes.
    pub max_record_bytes: usize,
    /// The deepest nesting of records, lists and maps; at most [`MAX_DEPTH_CEILING`].
    pub max_depth: usize,
    /// The most items of one list or map, and of all lists and maps of a record together. Fields of Avro records that
    /// take no bytes (of the type null) count as items too, since the size of a record does not bound them.
    pub max_items: usize,
}

impl Default for Limits {
    /// 8 MiB, 64 levels, 100,000 items.
    fn default() -> Self {
        Self { max_record_bytes: 8 * 1024 * 1024, max_depth: 64, max_items: 100_000 }
    }
}
