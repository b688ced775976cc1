//! DECODE: bytes become events.
//!
//! [`Decoder`] is made once for each source of a projection. It is synchronous and does no I/O: a schema that is not
//! cached makes it return [`Undecoded::AwaitsSchema`], the pipeline fetches it with [`Schemas::fetch`] while other
//! partitions go on, and asks again.

pub mod avro;
pub mod framing;
pub mod json;
pub mod registry;

use bytestring::ByteString;

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

/// Bounds that hold before anything is allocated (promise P9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest key, value or header, in bytes.
    pub max_record_bytes: usize,
    /// The deepest nesting of records, lists and maps.
    pub max_depth: usize,
    /// The most items of one list or map, and of all lists and maps of a record together.
    pub max_items: usize,
}

impl Default for Limits {
    /// 8 MiB, 64 levels, 100,000 items.
    fn default() -> Self {
        Self { max_record_bytes: 8 * 1024 * 1024, max_depth: 64, max_items: 100_000 }
    }
}

/// STUB
#[derive(Clone)]
pub struct Decoder;
/// STUB
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct DecoderError;
impl Decoder {
    /// STUB
    pub fn new(
        _: &crate::projection::SourceDeclaration,
        _: registry::Schemas,
        _: Limits,
    ) -> Result<Self, DecoderError> {
        Ok(Self)
    }
    /// STUB
    pub fn decode(&self, _: &crate::record::Record) -> Result<Decoded, Undecoded> {
        Err(Undecoded::AwaitsSchema(SchemaId(1)))
    }
}
/// STUB
pub fn schema_id(_: &crate::projection::ValueFormat, _: &[u8]) -> Option<SchemaId> {
    None
}
