//! Avro schemas, parsed and flattened into a table of types.
//!
//! The Avro crate parses and checks a schema; records are then read by our own reader, over a table in which each type
//! has an index and names are resolved. So recursive schemas are plain cycles of indexes, and reading allocates nothing for
//! them.

use std::collections::BTreeMap;
use std::panic;

use apache_avro::Schema;
use apache_avro::schema::{DecimalSchema, InnerDecimalSchema, Name, UuidSchema};
use bytestring::ByteString;
use serde_json::Value as Json;

use super::logical::{MAX_SCALE, Unit, Zone};

/// The text of a schema, and of the schemas of the named types that it refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaText {
    /// The schema.
    pub text: String,
    /// The schemas that it refers to, directly or through others, in any order.
    pub references: Vec<String>,
}

impl From<&str> for SchemaText {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), references: Vec::new() }
    }
}

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnusableSchema(pub(super) String);

/// A schema that records can be read with.
#[derive(Debug)]
pub struct ParsedSchema {
    types: Vec<Type>,
    /// Of each type, the bytes of a value where all of its values have the same number.
    lengths: Vec<Option<usize>>,
    root: TypeId,
}

/// The index of a type in its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TypeId(usize);

/// A type of the writer's schema.
#[derive(Debug)]
pub(super) enum Type {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    Text,
    Fixed(usize),
    Enum(Box<[ByteString]>),
    Decimal {
        scale: i64,
        size: Option<usize>,
    },
    BigDecimal,
    UuidText,
    UuidFixed,
    Date,
    TimeMillis,
    TimeMicros,
    Timestamp(Unit, Zone),
    Duration,
    List(TypeId),
    Map(TypeId),
    Union(Box<[TypeId]>),
    Record(RecordType),
    /// A named type; resolved before a schema is handed out.
    Reference(String),
}

/// A record type of the writer's schema.
#[derive(Debug)]
pub(super) struct RecordType {
    /// With its namespace.
    pub(super) name: ByteString,
    pub(super) fields: Box<[FieldType]>,
    /// How many fields take no bytes: they count as items, since the length of the data does not bound them.
    pub(super) empty_fields: usize,
}

/// A field of a record type.
#[derive(Debug)]
pub(super) struct FieldType {
    pub(super) name: ByteString,
    pub(super) of: TypeId,
}

impl ParsedSchema {
    /// Parses a schema with its references.
    ///
    /// Defaults of fields are not looked at: they say nothing about bytes that were written, and producers get away with
    /// wrong ones.
    ///
    /// # Errors
    /// The schema is not JSON or not Avro, a name that it refers to is missing, or a decimal is impossible.
    pub fn parse(schema: &SchemaText) -> Result<Self, UnusableSchema> {
        let text = prepared(&schema.text)?;
        let references =
            schema.references.iter().map(|text| prepared(text)).collect::<Result<Vec<_>, _>>()?;
        // Some malformed schemas make the crate panic instead of answering; a schema is input like any other.
        let parsed = panic::catch_unwind(|| Schema::parse_str_with_list(&text, &references))
            .map_err(|_| UnusableSchema("not a valid Avro schema".to_owned()))?;
        let (schema, named) =
            parsed.map_err(|error| UnusableSchema(format!("not a valid Avro schema: {error}")))?;
        Builder::default().build(&schema, &named)
    }

    pub(super) const fn root(&self) -> TypeId {
        self.root
    }

    pub(super) fn of(&self, id: TypeId) -> &Type {
        &self.types[id.0]
    }

    /// The bytes of every value of a type, where all have the same number.
    pub(super) fn length(&self, id: TypeId) -> Option<usize> {
        self.lengths[id.0]
    }
}

/// The schema's JSON without the defaults of fields; refuses decimals that the Avro crate would silently read as bytes.
fn prepared(text: &str) -> Result<String, UnusableSchema> {
    // A name alone, as registries store primitive schemas, may come without quotes.
    let bare = text.trim();
    if !bare.is_empty()
        && bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
    {
        return Ok(format!("\"{bare}\""));
    }
    let mut json: Json =
        serde_json::from_str(text).map_err(|error| UnusableSchema(format!("not valid JSON: {error}")))?;
    prepare(&mut json)?;
    Ok(json.to_string())
}

fn prepare(schema: &mut Json) -> Result<(), UnusableSchema> {
    match schema {
        Json::Array(branches) => branches.iter_mut().try_for_each(prepare),
        Json::Object(object) => {
            if let Some(Json::Array(fields)) = object.get_mut("fields") {
                for field in fields {
                    if let Json::Object(field) = field {
                        field.remove("default");
                        field.get_mut("type").map_or(Ok(()), prepare)?;
                    }
                }
            }
            for inner in ["type", "items", "values"] {
                object.get_mut(inner).map_or(Ok(()), prepare)?;
            }
            check_decimal(object)
        }
        _ => Ok(()),
    }
}

fn check_decimal(schema: &serde_json::Map<String, Json>) -> Result<(), UnusableSchema> {
    let is_decimal = schema.get("logicalType").is_some_and(|logical| logical == "decimal")
        && schema.get("type").is_some_and(|kind| kind == "bytes" || kind == "fixed");
    if !is_decimal {
        return Ok(());
    }
    let precision = schema.get("precision").and_then(Json::as_i64);
    let scale = schema.get("scale").map_or(Some(0), Json::as_i64);
    match (precision, scale) {
        (Some(1..), Some(scale)) if scale > MAX_SCALE => {
            Err(UnusableSchema(format!("a decimal has the scale {scale}, more than any store keeps")))
        }
        (Some(precision @ 1..), Some(scale @ 0..)) if scale <= precision => Ok(()),
        (Some(precision), Some(scale)) => Err(UnusableSchema(format!(
            "a decimal has the impossible precision {precision} and scale {scale}: precision must be at least 1, \
             scale at least 0 and not larger"
        ))),
        _ => Err(UnusableSchema("a decimal has no whole numbers as precision and scale".to_owned())),
    }
}

#[derive(Default)]
struct Builder {
    types: Vec<Type>,
    names: BTreeMap<String, TypeId>,
}

impl Builder {
    fn build(mut self, schema: &Schema, named: &[Schema]) -> Result<ParsedSchema, UnusableSchema> {
        let root = self.add(schema);
        for schema in named {
            self.add(schema);
        }
        let targets = self.targets()?;
        for kind in &mut self.types {
            match kind {
                Type::List(inner) | Type::Map(inner) => *inner = targets[inner.0],
                Type::Union(branches) => branches.iter_mut().for_each(|branch| *branch = targets[branch.0]),
                Type::Record(record) => {
                    record.fields.iter_mut().for_each(|field| field.of = targets[field.of.0]);
                }
                _ => {}
            }
        }
        let lengths = lengths(&self.types);
        for kind in &mut self.types {
            if let Type::Record(record) = kind {
                record.empty_fields =
                    record.fields.iter().filter(|field| lengths[field.of.0] == Some(0)).count();
            }
        }
        Ok(ParsedSchema { root: targets[root.0], types: self.types, lengths })
    }

    fn push(&mut self, kind: Type) -> TypeId {
        self.types.push(kind);
        TypeId(self.types.len() - 1)
    }

    fn add(&mut self, schema: &Schema) -> TypeId {
        let kind = match schema {
            Schema::Null => Type::Null,
            Schema::Boolean => Type::Boolean,
            Schema::Int => Type::Int,
            Schema::Long => Type::Long,
            Schema::Float => Type::Float,
            Schema::Double => Type::Double,
            // The specification knows no uuid over bytes: its logical type is ignored.
            Schema::Bytes | Schema::Uuid(UuidSchema::Bytes) => Type::Bytes,
            Schema::String => Type::Text,
            Schema::Array(list) => Type::List(self.add(&list.items)),
            Schema::Map(map) => Type::Map(self.add(&map.types)),
            Schema::Union(union) => {
                Type::Union(union.variants().iter().map(|branch| self.add(branch)).collect())
            }
            Schema::Record(record) => Type::Record(RecordType {
                name: ByteString::from(record.name.fullname(None)),
                fields: record
                    .fields
                    .iter()
                    .map(|field| FieldType {
                        name: ByteString::from(&*field.name),
                        of: self.add(&field.schema),
                    })
                    .collect(),
                empty_fields: 0,
            }),
            Schema::Enum(symbols) => {
                Type::Enum(symbols.symbols.iter().map(|symbol| ByteString::from(&**symbol)).collect())
            }
            Schema::Fixed(fixed) => Type::Fixed(fixed.size),
            Schema::Decimal(decimal) => decimal_type(decimal),
            Schema::BigDecimal => Type::BigDecimal,
            Schema::Uuid(UuidSchema::String) => Type::UuidText,
            Schema::Uuid(UuidSchema::Fixed(_)) => Type::UuidFixed,
            Schema::Date => Type::Date,
            Schema::TimeMillis => Type::TimeMillis,
            Schema::TimeMicros => Type::TimeMicros,
            Schema::TimestampMillis => Type::Timestamp(Unit::Millis, Zone::Utc),
            Schema::TimestampMicros => Type::Timestamp(Unit::Micros, Zone::Utc),
            Schema::TimestampNanos => Type::Timestamp(Unit::Nanos, Zone::Utc),
            Schema::LocalTimestampMillis => Type::Timestamp(Unit::Millis, Zone::Local),
            Schema::LocalTimestampMicros => Type::Timestamp(Unit::Micros, Zone::Local),
            Schema::LocalTimestampNanos => Type::Timestamp(Unit::Nanos, Zone::Local),
            Schema::Duration(_) => Type::Duration,
            Schema::Ref { name } => Type::Reference(name.fullname(None)),
        };
        let is_definition = !matches!(kind, Type::Reference(_));
        let id = self.push(kind);
        if is_definition && let Some(name) = schema.name() {
            self.define(name, schema, id);
        }
        id
    }

    fn define(&mut self, name: &Name, schema: &Schema, id: TypeId) {
        self.names.entry(name.fullname(None)).or_insert(id);
        for alias in schema.aliases().into_iter().flatten() {
            self.names.entry(alias.fullname(None)).or_insert(id);
        }
    }

    /// For each type the one that stands for it: itself or, for a reference, the named type.
    fn targets(&self) -> Result<Vec<TypeId>, UnusableSchema> {
        let target =
            |(index, kind): (usize, &Type)| match kind {
                Type::Reference(name) => self.names.get(name).copied().ok_or_else(|| {
                    UnusableSchema(format!("the schema refers to {name}, which is not defined"))
                }),
                _ => Ok(TypeId(index)),
            };
        self.types.iter().enumerate().map(target).collect()
    }
}

fn decimal_type(decimal: &DecimalSchema) -> Type {
    // The scale has been checked against MAX_SCALE before.
    let scale = i64::try_from(decimal.scale).unwrap_or(MAX_SCALE);
    let size = match &decimal.inner {
        InnerDecimalSchema::Bytes => None,
        InnerDecimalSchema::Fixed(fixed) => Some(fixed.size),
    };
    Type::Decimal { scale, size }
}

/// The lengths of all types, by a walk over records without recursion: a chain of named types may be long.
fn lengths(types: &[Type]) -> Vec<Option<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut states = vec![State::New; types.len()];
    let mut lengths = vec![None; types.len()];
    for start in 0..types.len() {
        let mut stack = vec![start];
        while let Some(&at) = stack.last() {
            if states[at] == State::New {
                states[at] = State::Open;
                if let Type::Record(record) = &types[at] {
                    // A type that is met again while it is open contains itself: it keeps no length.
                    stack.extend(
                        record.fields.iter().map(|field| field.of.0).filter(|of| states[*of] == State::New),
                    );
                }
                continue;
            }
            stack.pop();
            if states[at] == State::Open {
                states[at] = State::Done;
                lengths[at] = length(&types[at], &lengths);
            }
        }
    }
    lengths
}

/// The length of one type from those of the types in it.
fn length(kind: &Type, lengths: &[Option<usize>]) -> Option<usize> {
    match kind {
        Type::Null => Some(0),
        Type::Boolean => Some(1),
        Type::Float => Some(4),
        Type::Double => Some(8),
        Type::UuidFixed => Some(16),
        Type::Duration => Some(12),
        Type::Fixed(size) | Type::Decimal { size: Some(size), .. } => Some(*size),
        Type::Record(record) => record
            .fields
            .iter()
            .try_fold(0_usize, |sum, field| lengths[field.of.0].and_then(|length| sum.checked_add(length))),
        Type::Int
        | Type::Long
        | Type::Bytes
        | Type::Text
        | Type::Enum(_)
        | Type::Decimal { size: None, .. }
        | Type::BigDecimal
        | Type::UuidText
        | Type::Date
        | Type::TimeMillis
        | Type::TimeMicros
        | Type::Timestamp(..)
        | Type::List(_)
        | Type::Map(_)
        | Type::Union(_)
        | Type::Reference(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ParsedSchema, String> {
        ParsedSchema::parse(&SchemaText::from(text)).map_err(|error| error.to_string())
    }

    fn root_length(text: &str) -> Option<usize> {
        let schema = parse(text).unwrap();
        schema.length(schema.root())
    }

    #[test]
    fn lengths_are_known_where_they_are_fixed() {
        assert_eq!(root_length(r#""double""#), Some(8));
        assert_eq!(root_length(r#"{"type":"record","name":"E","fields":[]}"#), Some(0));
        let nested = r#"{"type":"record","name":"A","fields":[
            {"name":"b","type":{"type":"record","name":"B","fields":[{"name":"x","type":"float"},{"name":"n","type":"null"}]}},
            {"name":"c","type":"B"}]}"#;
        assert_eq!(root_length(nested), Some(8));
        assert_eq!(
            root_length(r#"{"type":"record","name":"A","fields":[{"name":"x","type":"long"}]}"#),
            None
        );
    }

    #[test]
    fn a_schema_that_contains_itself_has_no_length() {
        assert_eq!(root_length(r#"{"type":"record","name":"A","fields":[{"name":"a","type":"A"}]}"#), None);
    }

    #[test]
    fn impossible_decimals_are_refused_not_read_as_bytes() {
        for attributes in [
            r#""precision":4,"scale":5"#,
            r#""precision":0"#,
            r#""precision":-1"#,
            r#""scale":2"#,
            r#""precision":4,"scale":-1"#,
            r#""precision":"4""#,
            r#""precision":64,"scale":127"#,
            r#""precision":100000,"scale":20000"#,
        ] {
            for kind in [r#""type":"bytes""#, r#""type":"fixed","name":"F","size":9"#] {
                let text = format!(r#"{{{kind},"logicalType":"decimal",{attributes}}}"#);
                assert!(parse(&text).unwrap_err().contains("decimal"), "{text}");
                let field = format!(
                    r#"{{"type":"record","name":"R","fields":[{{"name":"d","type":["null",{text}]}}]}}"#
                );
                assert!(parse(&field).is_err(), "{field}");
            }
        }
        assert!(parse(r#"{"type":"bytes","logicalType":"decimal","precision":64,"scale":64}"#).is_ok());
    }

    #[test]
    fn wrong_defaults_of_a_writer_do_not_matter() {
        let text =
            r#"{"type":"record","name":"R","fields":[{"name":"a","type":["null","string"],"default":"x"}]}"#;
        assert!(parse(text).is_ok());
    }

    #[test]
    fn references_are_resolved_in_any_order_and_missing_ones_are_named() {
        let money = r#"{"type":"record","name":"Money","namespace":"shop","fields":[{"name":"in","type":"Currency"}]}"#;
        let currency = r#"{"type":"enum","name":"Currency","namespace":"shop","symbols":["EUR"]}"#;
        let order = r#"{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"total","type":"Money"}]}"#;
        for references in [[money, currency], [currency, money]] {
            let text = SchemaText {
                text: order.to_owned(),
                references: references.iter().map(|t| (*t).to_owned()).collect(),
            };
            let schema = ParsedSchema::parse(&text).unwrap();
            let Type::Record(order) = schema.of(schema.root()) else { panic!("a record") };
            let Type::Record(money) = schema.of(order.fields[0].of) else { panic!("a record") };
            assert!(matches!(schema.of(money.fields[0].of), Type::Enum(_)));
        }
        assert!(parse(order).unwrap_err().contains("Money"));
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for text in [
            "",
            "{",
            "42",
            "nope",
            r#"{"type":"record"}"#,
            r#"{"type":"record","name":"1","fields":[]}"#,
            "[]x",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let deep = format!("{}\"int\"{}", r#"{"type":"array","items":"#.repeat(5000), "}".repeat(5000));
        assert!(parse(&deep).is_err());
    }

    #[test]
    fn a_primitive_schema_may_come_without_quotes() {
        assert!(matches!(parse("long").unwrap().of(TypeId(0)), Type::Long));
    }
}
