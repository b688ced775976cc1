//! The decoder of one source.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use ahash::AHashMap;
use bytes::Bytes;
use bytestring::ByteString;

use super::flaw::Flaw;
use super::json::WantedNames;
use super::plan::Plan;
use super::registry::{Known, Schemas};
use super::schema::{ParsedSchema, SchemaText};
use super::{Decoded, Limits, MAX_DEPTH_CEILING, SchemaId, Undecoded, avro, framing, json};
use crate::fault::{Reason, RecordFault, Stage};
use crate::projection::{
    KeyFormat, SchemaFile, SchemaOrigin, SourceDeclaration, TypeRule, Value, ValueFormat, Wanted,
};
use crate::record::Record;

/// Why a decoder cannot be made from what is declared.
#[derive(Debug, thiserror::Error)]
pub enum DecoderError {
    /// A schema file is wrong.
    #[error("schema file {}: {why}", file.display())]
    Schema {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The source reads unframed Avro, but names no schema.
    #[error("source {topic} reads Avro without a frame, but names no schema file: declare `schemas: [FILE]`")]
    NoSchemaFile {
        /// The topic.
        topic: String,
    },
    /// The source reads framed Avro, but no registry is configured.
    #[error("source {topic} reads framed Avro, but no registry is configured: set `schema_registry.url`")]
    NoRegistry {
        /// The topic.
        topic: String,
    },
    /// The configured depth would not be safe.
    #[error("the limit of {given} levels of nesting is too high: the most is {most}")]
    DepthTooHigh {
        /// What is configured.
        given: usize,
        /// The most.
        most: usize,
    },
}

/// Decodes the records of one source. Shared by threads; makes one plan for each schema id that it meets.
pub struct Decoder {
    topic: ByteString,
    format: Format,
    key: Option<KeyFormat>,
    event_type: TypeRule,
    wanted: Wanted,
    limits: Limits,
}

enum Format {
    Json(Option<WantedNames>),
    Registry { schemas: Schemas, plans: RwLock<AHashMap<SchemaId, Arc<Plan>>> },
    Plain(Plan),
}

/// A value, and the full name of its type where it is an Avro record.
type Named = (Option<ByteString>, Value);

impl Decoder {
    /// A decoder for `source`.
    ///
    /// # Errors
    /// A schema file does not parse or is missing, framed Avro has no registry, or a limit is unsafe.
    pub fn new(source: &SourceDeclaration, schemas: Schemas, limits: Limits) -> Result<Self, DecoderError> {
        if limits.max_depth > MAX_DEPTH_CEILING {
            return Err(DecoderError::DepthTooHigh { given: limits.max_depth, most: MAX_DEPTH_CEILING });
        }
        let wanted = with_type_path(&source.wanted, &source.event_type);
        let format = match &source.value {
            ValueFormat::Json => Format::Json(WantedNames::of(&wanted)),
            ValueFormat::AvroConfluent { schemas: SchemaOrigin::Registry } if !schemas.has_registry() => {
                return Err(DecoderError::NoRegistry { topic: source.topic.clone() });
            }
            ValueFormat::AvroConfluent { schemas: SchemaOrigin::Registry } => {
                Format::Registry { schemas, plans: RwLock::default() }
            }
            ValueFormat::AvroPlain { schemas: files } => {
                let schema = parse_files(&source.topic, files)?;
                Format::Plain(Plan::new(Arc::new(schema), &wanted))
            }
        };
        Ok(Self {
            topic: ByteString::from(&*source.topic),
            format,
            key: source.reads_key.then_some(source.key),
            event_type: source.event_type.clone(),
            wanted,
            limits,
        })
    }

    /// Decodes a record: sizes, then the key where the mapping reads it, then the value and its type. A record
    /// without a value is a tombstone, without type; an empty value is none.
    ///
    /// # Errors
    /// [`Undecoded::AwaitsSchema`]: fetch the schema and call again. [`Undecoded::Fault`]: the record cannot be
    /// decoded.
    pub fn decode(&self, record: &Record) -> Result<Decoded, Undecoded> {
        check_sizes(record, self.limits.max_record_bytes).map_err(Undecoded::Fault)?;
        let key = match (&record.key, self.key) {
            (Some(bytes), Some(format)) => Some(self.key(bytes, format).map_err(|flaw| fault(flaw, "key"))?),
            _ => None,
        };
        let Some(bytes) = &record.value else {
            return Ok(Decoded { event_type: None, key, value: None });
        };
        let (name, value) = self.value(bytes)?;
        let event_type = self.event_type(record, name, &value).map_err(Undecoded::Fault)?;
        Ok(Decoded { event_type: Some(event_type), key, value: Some(value) })
    }

    fn key(&self, bytes: &Bytes, format: KeyFormat) -> Result<Value, Flaw> {
        match format {
            KeyFormat::Bytes => Ok(Value::Bytes(bytes.clone())),
            KeyFormat::Json => json::decode(bytes, None, self.limits),
            KeyFormat::String => utf8(bytes).map(Value::Text),
        }
    }

    fn value(&self, bytes: &Bytes) -> Result<Named, Undecoded> {
        let decoded = match &self.format {
            Format::Json(wanted) => {
                json::decode(bytes, wanted.as_ref(), self.limits).map(|value| (None, value))
            }
            Format::Plain(plan) => avro::decode(bytes, plan, self.limits),
            Format::Registry { schemas, plans } => {
                let (id, body) = framing::split(bytes).map_err(|flaw| fault(flaw, "value"))?;
                let plan = self.plan(id, schemas, plans)?;
                avro::decode(&body, &plan, self.limits)
            }
        };
        decoded.map_err(|flaw| fault(flaw, "value"))
    }

    fn plan(
        &self,
        id: SchemaId,
        schemas: &Schemas,
        plans: &RwLock<AHashMap<SchemaId, Arc<Plan>>>,
    ) -> Result<Arc<Plan>, Undecoded> {
        if let Some(plan) = plans.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
            return Ok(plan.clone());
        }
        let refuse =
            |reason, detail: String| Undecoded::Fault(RecordFault::new(Stage::Decode, reason, detail));
        match schemas.known(id) {
            Known::Schema(schema) => {
                let plan = Arc::new(Plan::new(schema, &self.wanted));
                plans.write().unwrap_or_else(PoisonError::into_inner).insert(id, plan.clone());
                Ok(plan)
            }
            Known::Unusable(why) => Err(refuse(Reason::InvalidSchema, format!("schema {id}: {why}"))),
            Known::Unknown => Err(refuse(
                Reason::SchemaNotFound,
                format!("the schema registry knows no schema with the id {id}"),
            )),
            Known::Nothing => Err(Undecoded::AwaitsSchema(id)),
        }
    }

    fn event_type(
        &self,
        record: &Record,
        name: Option<ByteString>,
        value: &Value,
    ) -> Result<ByteString, RecordFault> {
        let unknown = |detail: String| Err(RecordFault::new(Stage::Decode, Reason::UnknownType, detail));
        match &self.event_type {
            TypeRule::RecordNameOrTopic => Ok(name.unwrap_or_else(|| self.topic.clone())),
            TypeRule::Header(header) => match record.header(header) {
                None => unknown(format!("the header {header}, which holds the event type, is absent")),
                Some(bytes) if bytes.is_empty() => {
                    unknown(format!("the header {header}, which holds the event type, is empty"))
                }
                Some(bytes) => utf8(bytes).map_err(|flaw| flaw.of(&format!("header {header}"))),
            },
            TypeRule::ValuePath(path) => {
                let found = path.iter().try_fold(value, |value, name| value.field(name));
                let place = path.join(".");
                match found {
                    Some(Value::Text(text)) if !text.is_empty() => Ok(text.clone()),
                    Some(Value::Text(_)) => unknown(format!("value.{place}, the event type, is empty")),
                    Some(other) => {
                        unknown(format!("value.{place}, the event type, is no text but {}", other.kind()))
                    }
                    None => unknown(format!("value.{place}, the event type, is absent")),
                }
            }
        }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("topic", &self.topic).finish_non_exhaustive()
    }
}

fn fault(flaw: Flaw, part: &str) -> Undecoded {
    Undecoded::Fault(flaw.of(part))
}

fn utf8(bytes: &Bytes) -> Result<ByteString, Flaw> {
    ByteString::try_from(bytes.clone()).map_err(|error| {
        Flaw::new(Reason::InvalidUtf8, format!("not valid UTF-8 from byte {} on", error.valid_up_to()))
    })
}

/// The mapping's fields and the one that holds the event type.
fn with_type_path(wanted: &Wanted, rule: &TypeRule) -> Wanted {
    match (wanted, rule) {
        (Wanted::Fields(fields), TypeRule::ValuePath(path)) => {
            let mut fields = fields.clone();
            fields.add(path);
            Wanted::Fields(fields)
        }
        _ => wanted.clone(),
    }
}

/// Parses the files in their order, so that a mistake names the first file that has one.
fn parse_files(topic: &str, files: &[SchemaFile]) -> Result<ParsedSchema, DecoderError> {
    let mut parsed = Err(DecoderError::NoSchemaFile { topic: topic.to_owned() });
    let mut before = Vec::new();
    for file in files {
        let text = SchemaText { text: file.text.clone(), references: before.clone() };
        let schema = ParsedSchema::parse(&text)
            .map_err(|error| DecoderError::Schema { file: file.path.clone(), why: error.to_string() })?;
        parsed = Ok(schema);
        before.push(file.text.clone());
    }
    parsed
}

/// Key, value and each header against the limit.
fn check_sizes(record: &Record, most: usize) -> Result<(), RecordFault> {
    let key = record.key.as_ref().map(|key| ("the key", key.len()));
    let value = record.value.as_ref().map(|value| ("the value", value.len()));
    let headers = record
        .headers
        .iter()
        .map(|header| ("a header", header.name.len() + header.value.as_ref().map_or(0, Bytes::len)));
    for (part, size) in key.into_iter().chain(value).chain(headers) {
        if size > most {
            let detail = format!("{part} has {size} bytes, more than the limit of {most}");
            return Err(RecordFault::new(Stage::Decode, Reason::TooLarge, detail));
        }
    }
    Ok(())
}
