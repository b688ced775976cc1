//! What decoding promises, through its own interface.

mod avro;
mod decoder;
mod http;
mod json;
mod random;
mod schemas;

use std::sync::Arc;

use bytes::Bytes;

use super::avro as avro_reader;
use super::json::WantedNames;
use super::plan::Plan;
use super::schema::{ParsedSchema, SchemaText};
use super::{Limits, json as json_reader};
use crate::fault::{Reason, RecordFault};
use crate::position::RecordOffset;
use crate::projection::{Value, Wanted, WantedFields};
use crate::record::{Record, RecordCoordinates, RecordTimestamp, TopicPartition};

/// `a.b, c`: the fields that a mapping wants.
fn wanted(paths: &str) -> Wanted {
    let mut fields = WantedFields::default();
    for path in paths.split(',').map(str::trim).filter(|path| !path.is_empty()) {
        fields.add(&path.split('.').map(str::to_owned).collect::<Vec<_>>());
    }
    Wanted::Fields(fields)
}

fn plan(schema: &str, wanted: &Wanted) -> Plan {
    let schema = ParsedSchema::parse(&SchemaText::from(schema)).expect("a valid schema");
    Plan::new(Arc::new(schema), wanted)
}

/// Reads Avro with small limits.
fn read_avro(schema: &str, wanted: &Wanted, bytes: &[u8]) -> Result<Value, RecordFault> {
    read_avro_within(schema, wanted, bytes, Limits::default())
}

fn read_avro_within(
    schema: &str,
    wanted: &Wanted,
    bytes: &[u8],
    limits: Limits,
) -> Result<Value, RecordFault> {
    avro_reader::decode(&Bytes::copy_from_slice(bytes), &plan(schema, wanted), limits)
        .map(|(_, value)| value)
        .map_err(|flaw| flaw.of("value"))
}

fn read_json(text: &[u8], wanted: &Wanted, limits: Limits) -> Result<Value, RecordFault> {
    json_reader::decode(&Bytes::copy_from_slice(text), WantedNames::of(wanted).as_ref(), limits)
        .map_err(|flaw| flaw.of("value"))
}

fn reason(result: Result<Value, RecordFault>) -> Reason {
    result.expect_err("a fault").reason
}

fn fields(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Record(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

fn record(key: Option<&[u8]>, value: Option<&[u8]>) -> Record {
    Record {
        coordinates: RecordCoordinates {
            topic_partition: TopicPartition::new("shop.products", 0),
            offset: RecordOffset::new(7),
        },
        leader_epoch: None,
        timestamp: RecordTimestamp::Absent,
        key: key.map(Bytes::copy_from_slice),
        value: value.map(Bytes::copy_from_slice),
        headers: Vec::new(),
    }
}

/// A `long` as Avro writes it.
fn long(number: i64) -> Vec<u8> {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push(u8::try_from(rest & 0x7f).expect("seven bits") | 0x80);
        rest >>= 7;
    }
    bytes.push(u8::try_from(rest).expect("seven bits"));
    bytes
}
