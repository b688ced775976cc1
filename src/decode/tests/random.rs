//! Random schemas and values, written by the Avro crate's encoder and read back by our reader.

use std::collections::HashMap;

use apache_avro::types::Value as Avro;
use apache_avro::writer::datum::GenericDatumWriter;
use apache_avro::{Days, Decimal, Duration, Millis, Months, Schema};
use bigdecimal::BigDecimal;
use bigdecimal::num_bigint::BigInt;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::{plan, read_avro, read_avro_within};
use crate::decode::Limits;
use crate::fault::Reason;
use crate::projection::{Value, Wanted, WantedFields};

/// A value together with its schema.
#[derive(Debug, Clone)]
enum Sample {
    /// Schema without the name that named types need, the crate's value, and what we make of it.
    Scalar(Json, Avro, Value),
    Record(Vec<Sample>),
    /// Items of one schema: the same sample so many times.
    List(Box<Sample>, usize),
    Map(Box<Sample>, usize),
    /// `[null, schema]`, with or without the value.
    Optional(Box<Sample>, bool),
    /// The sample in the middle of a union of three.
    Choice(Box<Sample>, usize),
}

impl Sample {
    /// The schema; every named type gets the next number as its name.
    fn schema(&self, names: &mut usize) -> Json {
        let mut name = || {
            *names += 1;
            format!("N{names}")
        };
        match self {
            Self::Scalar(schema, ..) => {
                let mut schema = schema.clone();
                if matches!(schema["type"].as_str(), Some("fixed" | "enum")) {
                    schema["name"] = name().into();
                }
                schema
            }
            Self::Record(samples) => {
                let name = name();
                let fields: Vec<Json> = samples
                    .iter()
                    .enumerate()
                    .map(|(index, sample)| json!({"name": format!("f{index}"), "type": sample.schema(names)}))
                    .collect();
                json!({"type": "record", "name": name, "fields": fields})
            }
            Self::List(item, _) => json!({"type": "array", "items": item.schema(names)}),
            Self::Map(value, _) => json!({"type": "map", "values": value.schema(names)}),
            Self::Optional(inner, _) => json!(["null", inner.schema(names)]),
            Self::Choice(inner, _) => {
                let (before, after) = (name(), name());
                json!([
                    {"type": "fixed", "name": before, "size": 3},
                    inner.schema(names),
                    {"type": "enum", "name": after, "symbols": ["X"]}
                ])
            }
        }
    }

    fn avro(&self) -> Avro {
        match self {
            Self::Scalar(_, avro, _) => avro.clone(),
            Self::Record(samples) => {
                let fields = samples.iter().enumerate();
                Avro::Record(fields.map(|(index, sample)| (format!("f{index}"), sample.avro())).collect())
            }
            Self::List(item, count) => Avro::Array(vec![item.avro(); *count]),
            Self::Map(value, count) => Avro::Map(
                (0..*count).map(|index| (format!("k{index}"), value.avro())).collect::<HashMap<_, _>>(),
            ),
            Self::Optional(inner, true) | Self::Choice(inner, 1) => Avro::Union(1, Box::new(inner.avro())),
            Self::Optional(_, false) => Avro::Union(0, Box::new(Avro::Null)),
            Self::Choice(_, 0) => Avro::Union(0, Box::new(Avro::Fixed(3, vec![1, 2, 3]))),
            Self::Choice(..) => Avro::Union(2, Box::new(Avro::Enum(0, "X".to_owned()))),
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Scalar(_, _, value) => value.clone(),
            Self::Record(samples) => {
                let fields = samples.iter().enumerate();
                Value::Record(
                    fields.map(|(index, sample)| (format!("f{index}").into(), sample.value())).collect(),
                )
            }
            Self::List(item, count) => Value::List(vec![item.value(); *count]),
            Self::Map(value, count) => {
                Value::Record((0..*count).map(|index| (format!("k{index}").into(), value.value())).collect())
            }
            Self::Optional(inner, true) | Self::Choice(inner, 1) => inner.value(),
            Self::Optional(_, false) => Value::Null,
            Self::Choice(_, 0) => Value::Bytes(vec![1, 2, 3].into()),
            Self::Choice(..) => Value::from("X"),
        }
    }
}

/// Maps come in any order: sorted on both sides before comparing.
fn sorted(value: Value) -> Value {
    match value {
        Value::List(items) => Value::List(items.into_iter().map(sorted).collect()),
        Value::Record(fields) => {
            let mut fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            fields.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
            Value::Record(fields)
        }
        other => other,
    }
}

/// What is left of a whole value where only some fields are wanted.
fn pruned(value: Value, wanted: &WantedFields) -> Value {
    match value {
        Value::List(items) => Value::List(items.into_iter().map(|item| pruned(item, wanted)).collect()),
        Value::Record(fields) => Value::Record(
            fields
                .into_iter()
                .filter_map(|(name, value)| {
                    let below = wanted.0.get(&*name)?;
                    Some((name, if below.0.is_empty() { value } else { pruned(value, below) }))
                })
                .collect(),
        ),
        other => other,
    }
}

fn logical(base: &str, logical: &str) -> Json {
    json!({"type": base, "logicalType": logical})
}

fn decimal(unscaled: i128, scale: i64, size: Option<usize>) -> Sample {
    let mut bytes = BigInt::from(unscaled).to_signed_bytes_be();
    let mut schema = json!({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": scale});
    if let Some(size) = size {
        let sign = if unscaled < 0 { 0xff } else { 0 };
        bytes = [vec![sign; size - bytes.len()], bytes].concat();
        schema["type"] = "fixed".into();
        schema["size"] = size.into();
    }
    let value = Value::Decimal(BigDecimal::new(BigInt::from(unscaled), scale));
    Sample::Scalar(schema, Avro::Decimal(Decimal::from(bytes)), value)
}

fn primitive() -> impl Strategy<Value = Sample> {
    let sample = |schema: &str, avro, value| Sample::Scalar(Json::from(schema), avro, value);
    prop_oneof![
        Just(sample("null", Avro::Null, Value::Null)),
        any::<bool>().prop_map(move |flag| sample("boolean", Avro::Boolean(flag), Value::Bool(flag))),
        any::<i32>().prop_map(move |number| sample("int", Avro::Int(number), Value::Int(number.into()))),
        any::<i64>().prop_map(move |number| sample("long", Avro::Long(number), Value::Int(number))),
        any::<f32>().prop_map(move |number| sample(
            "float",
            Avro::Float(number),
            Value::Double(number.into())
        )),
        any::<f64>().prop_map(move |number| sample("double", Avro::Double(number), Value::Double(number))),
        any::<String>().prop_map(move |text| sample("string", Avro::String(text.clone()), Value::from(text))),
        any::<Vec<u8>>().prop_map(move |bytes| sample(
            "bytes",
            Avro::Bytes(bytes.clone()),
            Value::Bytes(bytes.into())
        )),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| {
            let schema = json!({"type": "fixed", "size": bytes.len()});
            Sample::Scalar(schema, Avro::Fixed(bytes.len(), bytes.clone()), Value::Bytes(bytes.into()))
        }),
        (0..3_u32).prop_map(|index| {
            let symbols = ["NEW", "PAID", "REFUNDED"];
            let symbol = symbols[index as usize];
            let schema = json!({"type": "enum", "symbols": symbols});
            Sample::Scalar(schema, Avro::Enum(index, symbol.to_owned()), Value::from(symbol))
        }),
    ]
}

fn logical_type() -> impl Strategy<Value = Sample> {
    let sample = |schema, avro, value| Sample::Scalar(schema, avro, value);
    let safe = i64::MIN / 1000..=i64::MAX / 1000;
    prop_oneof![
        (any::<i128>(), 0..38_i64).prop_map(|(unscaled, scale)| decimal(unscaled, scale, None)),
        (any::<i128>(), 0..38_i64, 16..20_usize).prop_map(|(unscaled, scale, size)| decimal(
            unscaled,
            scale,
            Some(size)
        )),
        any::<[u8; 16]>().prop_map(move |bytes| {
            let uuid = uuid::Uuid::from_bytes(bytes);
            sample(logical("string", "uuid"), Avro::Uuid(uuid), Value::Uuid(bytes))
        }),
        any::<[u8; 16]>().prop_map(move |bytes| {
            let schema = json!({"type": "fixed", "size": 16, "logicalType": "uuid"});
            sample(schema, Avro::Uuid(uuid::Uuid::from_bytes(bytes)), Value::Uuid(bytes))
        }),
        any::<i32>().prop_map(move |days| sample(
            logical("int", "date"),
            Avro::Date(days),
            Value::Date(days)
        )),
        (0..86_400_000_i32).prop_map(move |n| {
            sample(logical("int", "time-millis"), Avro::TimeMillis(n), Value::Time(i64::from(n) * 1000))
        }),
        (0..86_400_000_000_i64).prop_map(move |n| sample(
            logical("long", "time-micros"),
            Avro::TimeMicros(n),
            Value::Time(n)
        )),
        safe.clone().prop_map(move |n| {
            sample(
                logical("long", "timestamp-millis"),
                Avro::TimestampMillis(n),
                Value::TimestampTz(n * 1000),
            )
        }),
        any::<i64>().prop_map(move |n| {
            sample(logical("long", "timestamp-micros"), Avro::TimestampMicros(n), Value::TimestampTz(n))
        }),
        safe.clone().prop_map(move |n| {
            sample(logical("long", "timestamp-nanos"), Avro::TimestampNanos(n * 1000), Value::TimestampTz(n))
        }),
        safe.clone().prop_map(move |n| {
            sample(
                logical("long", "local-timestamp-millis"),
                Avro::LocalTimestampMillis(n),
                Value::Timestamp(n * 1000),
            )
        }),
        any::<i64>().prop_map(move |n| {
            sample(
                logical("long", "local-timestamp-micros"),
                Avro::LocalTimestampMicros(n),
                Value::Timestamp(n),
            )
        }),
        safe.prop_map(move |n| {
            sample(
                logical("long", "local-timestamp-nanos"),
                Avro::LocalTimestampNanos(n * 1000),
                Value::Timestamp(n),
            )
        }),
        any::<[u32; 3]>().prop_map(move |[months, days, millis]| {
            let schema = json!({"type": "fixed", "size": 12, "logicalType": "duration"});
            let avro =
                Avro::Duration(Duration::new(Months::new(months), Days::new(days), Millis::new(millis)));
            let text = format!("P{months}M{days}DT{}.{:03}S", millis / 1000, millis % 1000);
            sample(schema, avro, Value::from(text))
        }),
        (any::<i128>(), 0..100_i64).prop_map(move |(unscaled, scale)| {
            let number = BigDecimal::new(BigInt::from(unscaled), scale);
            sample(logical("bytes", "big-decimal"), Avro::BigDecimal(number.clone()), Value::Decimal(number))
        }),
    ]
}

/// A union may not hold another one directly, nor `null` twice.
fn can_stand_in_union(sample: &Sample) -> bool {
    match sample {
        Sample::Optional(..) | Sample::Choice(..) => false,
        Sample::Scalar(schema, ..) => schema != "null",
        _ => true,
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    prop_oneof![primitive(), logical_type()].prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 0..6).prop_map(Sample::Record),
            1 => (inner.clone(), 0..4_usize).prop_map(|(item, count)| Sample::List(Box::new(item), count)),
            1 => (inner.clone(), 0..4_usize).prop_map(|(value, count)| Sample::Map(Box::new(value), count)),
            1 => (inner.clone().prop_filter("union", can_stand_in_union), any::<bool>())
                .prop_map(|(inner, there)| Sample::Optional(Box::new(inner), there)),
            1 => (inner.prop_filter("union", can_stand_in_union), 0..3_usize)
                .prop_map(|(inner, branch)| Sample::Choice(Box::new(inner), branch)),
        ]
    })
}

/// A tree of names that occur in samples, and one that does not.
fn some_fields() -> impl Strategy<Value = WantedFields> {
    let path = prop::collection::vec(prop_oneof!["f[0-5]", "k[0-3]", Just("x".to_owned())], 1..4);
    prop::collection::vec(path, 0..6).prop_map(|paths| {
        let mut wanted = WantedFields::default();
        for path in &paths {
            wanted.add(path);
        }
        wanted
    })
}

fn written(sample: &Sample) -> (String, Vec<u8>) {
    let schema = sample.schema(&mut 0).to_string();
    let parsed = Schema::parse_str(&schema).expect("a valid schema");
    let bytes = GenericDatumWriter::builder(&parsed)
        .build()
        .and_then(|writer| writer.write_value_to_vec(sample.avro()))
        .expect("a value of its schema");
    (schema, bytes)
}

/// How many values there are, and how deep.
fn measure(value: &Value) -> (usize, usize) {
    let inner = match value {
        Value::List(items) => items.iter().map(measure).collect::<Vec<_>>(),
        Value::Record(fields) => fields.iter().map(|(_, value)| measure(value)).collect(),
        _ => return (1, 0),
    };
    let count = inner.iter().map(|(count, _)| count).sum::<usize>();
    (count + 1, inner.iter().map(|(_, depth)| *depth).max().unwrap_or(0) + 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_another_encoder_wrote_reads_as_the_same_value(sample in sample()) {
        let (schema, bytes) = written(&sample);
        let value = read_avro(&schema, &Wanted::All, &bytes);
        prop_assert_eq!(sorted(value.unwrap()), sorted(sample.value()), "{}", schema);
    }

    #[test]
    fn some_fields_are_what_is_left_of_the_whole_value(sample in sample(), wanted in some_fields()) {
        let (schema, bytes) = written(&sample);
        let some = read_avro(&schema, &Wanted::Fields(wanted.clone()), &bytes).unwrap();
        prop_assert_eq!(sorted(some), sorted(pruned(sample.value(), &wanted)), "{}", schema);
    }

    #[test]
    fn mutated_bytes_give_a_value_within_the_limits_or_a_fault(
        sample in sample(),
        wanted in some_fields(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        tail in prop::collection::vec(any::<u8>(), 0..3),
    ) {
        let (schema, mut bytes) = written(&sample);
        for (at, byte) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        bytes.extend(tail);
        let limits = Limits { max_depth: 4, max_items: 20, ..Limits::default() };
        for wanted in [Wanted::All, Wanted::Fields(wanted)] {
            if let Ok(value) = read_avro_within(&schema, &wanted, &bytes, limits) {
                let (count, depth) = measure(&value);
                prop_assert!(depth <= limits.max_depth);
                // Each value takes a byte, counts as an item, is a field of no bytes, or is the root.
                prop_assert!(count <= bytes.len() + limits.max_items + 1 + limits.max_depth, "{count} values");
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(sample in sample(), bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let schema = sample.schema(&mut 0).to_string();
        if let Err(fault) = read_avro(&schema, &Wanted::All, &bytes) {
            prop_assert!(matches!(
                fault.reason,
                Reason::InvalidAvro | Reason::InvalidUtf8 | Reason::TrailingBytes | Reason::TooManyItems
                    | Reason::InvalidValue | Reason::ValueOutOfRange
            ), "{}", fault);
        }
    }

    #[test]
    fn a_schema_can_be_any_text(text in any::<String>(), at in any::<prop::sample::Index>(), sample in sample()) {
        let _ = super::ParsedSchema::parse(&super::SchemaText::from(text.as_str()));
        // A valid schema with a piece missing is nearer to what happens.
        let mut schema = sample.schema(&mut 0).to_string();
        let at = at.index(schema.len());
        if schema.is_char_boundary(at) && schema.is_char_boundary(at + 1) {
            schema.remove(at);
        }
        let _ = super::ParsedSchema::parse(&super::SchemaText::from(schema.as_str()));
    }
}

#[test]
fn a_plan_names_the_record_of_the_branch_that_a_value_takes() {
    let schema = r#"[{"type":"record","name":"A","namespace":"shop","fields":[]},
        {"type":"record","name":"B","namespace":"shop","fields":[]},"null"]"#;
    let plan = plan(schema, &Wanted::All);
    let name = |branch: u8| {
        let bytes = bytes::Bytes::from(vec![branch * 2]);
        super::avro_reader::decode(&bytes, &plan, Limits::default()).unwrap().0
    };
    assert_eq!(name(0).as_deref(), Some("shop.A"));
    assert_eq!(name(1).as_deref(), Some("shop.B"));
    assert_eq!(name(2), None);
}
