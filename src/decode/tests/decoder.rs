//! The decoder of a source: order of checks, keys, types, tombstones, framing.

use std::time::Duration;

use bytes::Bytes;

use super::{fields, record, wanted};
use crate::decode::registry::MemoryRegistry;
use crate::decode::{
    Decoded, Decoder, DecoderError, Limits, MAX_DEPTH_CEILING, SchemaId, Schemas, Undecoded,
};
use crate::fault::{Reason, Stage};
use crate::projection::{
    KeyFormat, SchemaFile, SchemaOrigin, SourceDeclaration, Start, TypeRule, Value, ValueFormat, Wanted,
};
use crate::record::{Header, Record};

const PRODUCT: &str = r#"{"type":"record","name":"ProductListed","namespace":"shop","fields":[
    {"name":"name","type":"string"},{"name":"cents","type":"long"}]}"#;

fn source(value: ValueFormat) -> SourceDeclaration {
    SourceDeclaration {
        topic: "shop.products".to_owned(),
        value,
        key: KeyFormat::String,
        event_type: TypeRule::RecordNameOrTopic,
        wanted: Wanted::All,
        reads_key: true,
        start: Start::Earliest,
    }
}

fn confluent() -> ValueFormat {
    ValueFormat::AvroConfluent { schemas: SchemaOrigin::Registry }
}

fn plain(texts: &[&str]) -> ValueFormat {
    let file = |(index, text): (usize, &&str)| SchemaFile {
        path: format!("schemas/{index}.avsc").into(),
        text: (*text).to_owned(),
    };
    ValueFormat::AvroPlain { schemas: texts.iter().enumerate().map(file).collect() }
}

fn decoder(source: &SourceDeclaration) -> Decoder {
    Decoder::new(source, Schemas::none(), Limits::default()).expect("a decoder")
}

async fn with_schema(source: &SourceDeclaration, id: SchemaId, text: &str) -> Decoder {
    let registry = MemoryRegistry::new();
    registry.register(id, text);
    let schemas = Schemas::new(std::sync::Arc::new(registry));
    schemas.fetch(id).await.expect("a schema");
    Decoder::new(source, schemas, Limits::default()).expect("a decoder")
}

fn refused(result: Result<Decoded, Undecoded>) -> (Reason, String) {
    match result {
        Err(Undecoded::Fault(fault)) => {
            assert_eq!(fault.stage, Stage::Decode);
            (fault.reason, fault.detail)
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn with_header(mut record: Record, name: &str, value: Option<&[u8]>) -> Record {
    record.headers.push(Header { name: name.into(), value: value.map(Bytes::copy_from_slice) });
    record
}

#[tokio::test]
async fn a_framed_record_is_decoded_with_the_full_name_of_its_schema_as_type() {
    let decoder = with_schema(&source(confluent()), SchemaId(258), PRODUCT).await;
    let value = [0, 0, 0, 1, 2, 8, b'L', b'a', b'm', b'p', 0x88, 0x0e];
    let event = decoder.decode(&record(Some(b"p1"), Some(&value))).unwrap();
    assert_eq!(event.event_type.as_deref(), Some("shop.ProductListed"));
    assert_eq!(event.key, Some(Value::from("p1")));
    assert_eq!(event.value, Some(fields([("name", Value::from("Lamp")), ("cents", Value::Int(900))])));
}

#[tokio::test]
async fn framing_is_declared_and_never_guessed() {
    let framed = with_schema(&source(confluent()), SchemaId(1), PRODUCT).await;
    let body = [8, b'L', b'a', b'm', b'p', 0x88, 0x0e];
    let whole = [&[0, 0, 0, 0, 1][..], &body].concat();
    for (value, shown) in [
        (&b"{\"id\":1}"[..], "0x7b and it has 8 bytes"),
        (&[0, 0, 0, 0], "4 bytes"),
        (&[], "empty"),
        (&body, "0x08 and it has 7 bytes"),
    ] {
        let (reason, detail) = refused(framed.decode(&record(None, Some(value))));
        assert_eq!(reason, Reason::BadFraming);
        assert!(detail.contains(shown), "{detail}");
    }
    let trailing = [&whole[..], &[1, 2, 3]].concat();
    assert_eq!(refused(framed.decode(&record(None, Some(&trailing)))).0, Reason::TrailingBytes);
    assert!(framed.decode(&record(None, Some(&whole))).is_ok());

    let unframed = decoder(&source(plain(&[PRODUCT])));
    assert!(unframed.decode(&record(None, Some(&body))).is_ok());
    let (reason, _) = refused(unframed.decode(&record(None, Some(&whole))));
    assert!(matches!(reason, Reason::TrailingBytes | Reason::InvalidAvro), "{reason}");
}

#[test]
fn a_null_value_is_a_tombstone_and_an_empty_one_is_not() {
    let json = decoder(&source(ValueFormat::Json));
    let event = json.decode(&record(Some(b"p1"), None)).unwrap();
    assert_eq!(event, Decoded { event_type: None, key: Some(Value::from("p1")), value: None });
    assert_eq!(refused(json.decode(&record(None, Some(b"")))).0, Reason::InvalidJson);
}

#[test]
fn a_key_that_nobody_reads_is_never_a_fault() {
    let bad = record(Some(&[0, 0, 0, 0, 7, 0x0c, 0x83]), Some(b"{}"));
    let mut source = source(ValueFormat::Json);
    let (reason, detail) = refused(decoder(&source).decode(&bad));
    assert_eq!(reason, Reason::InvalidUtf8);
    assert!(detail.starts_with("key: "), "{detail}");
    source.key = KeyFormat::Json;
    assert_eq!(refused(decoder(&source).decode(&bad)).0, Reason::InvalidUtf8);
    source.key = KeyFormat::Bytes;
    assert_eq!(decoder(&source).decode(&bad).unwrap().key, bad.key.clone().map(Value::Bytes));
    source.reads_key = false;
    source.key = KeyFormat::String;
    assert_eq!(decoder(&source).decode(&bad).unwrap().key, None);
}

#[test]
fn a_json_key_keeps_its_numbers() {
    let mut source = source(ValueFormat::Json);
    source.key = KeyFormat::Json;
    let event = decoder(&source).decode(&record(Some(b"{\"id\":18446744073709551615}"), None)).unwrap();
    assert_eq!(event.key, Some(fields([("id", Value::Number("18446744073709551615".into()))])));
    assert_eq!(refused(decoder(&source).decode(&record(Some(b"p1"), None))).0, Reason::InvalidJson);
}

#[test]
fn the_type_is_the_topic_where_nothing_else_says_it() {
    let event = decoder(&source(ValueFormat::Json)).decode(&record(None, Some(b"{}"))).unwrap();
    assert_eq!(event.event_type.as_deref(), Some("shop.products"));
    let scalar = decoder(&source(plain(&["\"long\""]))).decode(&record(None, Some(&[2]))).unwrap();
    assert_eq!(scalar.event_type.as_deref(), Some("shop.products"));
}

#[test]
fn the_type_in_a_header_is_its_last_value_and_must_be_there() {
    let mut source = source(ValueFormat::Json);
    source.event_type = TypeRule::Header("event-type".to_owned());
    let decoder = decoder(&source);
    let empty = || record(None, Some(b"{}"));
    let twice = with_header(with_header(empty(), "event-type", Some(b"Old")), "event-type", Some(b"New"));
    assert_eq!(decoder.decode(&twice).unwrap().event_type.as_deref(), Some("New"));
    assert_eq!(decoder.decode(&record(None, None)).unwrap().event_type, None);
    for value in [None, Some(&b""[..])] {
        let (reason, _) = refused(decoder.decode(&with_header(empty(), "event-type", value)));
        assert_eq!(reason, Reason::UnknownType);
    }
    assert_eq!(refused(decoder.decode(&empty())).0, Reason::UnknownType);
    let bad = with_header(empty(), "event-type", Some(&[0x80, 0x81]));
    assert_eq!(refused(decoder.decode(&bad)).0, Reason::InvalidUtf8);
    let other = with_header(with_header(empty(), "trace", Some(&[0x80, 0x81])), "event-type", Some(b"T"));
    assert!(decoder.decode(&other).is_ok());
}

#[test]
fn the_type_in_the_value_is_read_even_where_the_mapping_does_not_want_it() {
    let mut source = source(ValueFormat::Json);
    source.event_type = TypeRule::ValuePath(vec!["meta".to_owned(), "kind".to_owned()]);
    source.wanted = wanted("sku");
    let decoder = decoder(&source);
    let event =
        decoder.decode(&record(None, Some(br#"{"sku":"p1","meta":{"kind":"Moved","x":1},"y":2}"#))).unwrap();
    assert_eq!(event.event_type.as_deref(), Some("Moved"));
    assert_eq!(event.value.unwrap().field("sku"), Some(&Value::from("p1")));
    for text in [
        r"{}",
        r#"{"meta":1}"#,
        r#"{"meta":{"kind":null}}"#,
        r#"{"meta":{"kind":7}}"#,
        r#"{"meta":{"kind":""}}"#,
        "[]",
    ] {
        let (reason, detail) = refused(decoder.decode(&record(None, Some(text.as_bytes()))));
        assert_eq!(reason, Reason::UnknownType, "{text}");
        assert!(detail.contains("value.meta.kind"), "{detail}");
    }
}

#[test]
fn sizes_are_checked_first_for_key_value_and_headers() {
    let mut source = source(ValueFormat::Json);
    source.reads_key = false;
    let limits = Limits { max_record_bytes: 8, ..Limits::default() };
    let decoder = Decoder::new(&source, Schemas::none(), limits).unwrap();
    assert!(decoder.decode(&record(Some(b"12345678"), Some(b"[1, 2,3]"))).is_ok());
    for (large, part) in [
        (record(Some(b"123456789"), Some(b"{}")), "the key"),
        (record(None, Some(b"not json!")), "the value"),
        (with_header(record(None, Some(b"{}")), "name", Some(b"12345")), "a header"),
    ] {
        let (reason, detail) = refused(decoder.decode(&large));
        assert_eq!(reason, Reason::TooLarge);
        assert!(
            detail.starts_with(part) && detail.ends_with("9 bytes, more than the limit of 8"),
            "{detail}"
        );
    }
}

#[test]
fn a_decoder_that_cannot_work_is_not_made() {
    let make = |value| Decoder::new(&source(value), Schemas::none(), Limits::default());
    assert!(matches!(make(confluent()), Err(DecoderError::NoRegistry { .. })));
    assert!(matches!(make(plain(&[])), Err(DecoderError::NoSchemaFile { .. })));
    let deep = Limits { max_depth: MAX_DEPTH_CEILING + 1, ..Limits::default() };
    assert!(matches!(
        Decoder::new(&source(ValueFormat::Json), Schemas::none(), deep),
        Err(DecoderError::DepthTooHigh { .. })
    ));
    let money = r#"{"type":"record","name":"Money","fields":[{"name":"cents","type":"long"}]}"#;
    let order = r#"{"type":"record","name":"Order","fields":[{"name":"total","type":"Money"}]}"#;
    assert!(make(plain(&[money, order])).is_ok());
    for (files, shown) in [
        (vec![money, "{"], "schemas/1.avsc: not valid JSON"),
        (vec!["{}", order], "schemas/0.avsc: not a valid Avro schema"),
        (vec![order, money], "schemas/0.avsc: not a valid Avro schema"),
    ] {
        let error = make(plain(&files)).unwrap_err().to_string();
        assert!(error.contains(shown), "{error}");
    }
}

#[tokio::test]
async fn a_schema_that_cannot_be_used_is_a_fault_of_each_record_and_asked_for_once() {
    let bad = r#"{"type":"record","name":"R","fields":[
        {"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":64,"scale":127}}]}"#;
    let decoder = with_schema(&source(confluent()), SchemaId(9), bad).await;
    for _ in 0..2 {
        let (reason, detail) = refused(decoder.decode(&record(None, Some(&[0, 0, 0, 0, 9, 0]))));
        assert_eq!(reason, Reason::InvalidSchema);
        assert!(detail.contains("schema 9: a decimal has the impossible precision 64"), "{detail}");
    }
}

#[tokio::test]
async fn a_record_of_a_declared_unknown_id_is_a_fault_until_the_time_has_passed() {
    let registry = std::sync::Arc::new(MemoryRegistry::new());
    let schemas = Schemas::new(registry.clone());
    let decoder = Decoder::new(&source(confluent()), schemas.clone(), Limits::default()).unwrap();
    let framed = record(None, Some(&[0, 0, 0, 0, 99, 2, b'x', 0]));
    assert_eq!(decoder.decode(&framed), Err(Undecoded::AwaitsSchema(SchemaId(99))));
    assert!(schemas.fetch(SchemaId(99)).await.is_err());
    assert_eq!(decoder.decode(&framed), Err(Undecoded::AwaitsSchema(SchemaId(99))), "an error is not kept");

    schemas.declare_unknown(SchemaId(99), Duration::from_hours(1));
    assert_eq!(refused(decoder.decode(&framed)).0, Reason::SchemaNotFound);
    registry.register(SchemaId(99), PRODUCT);
    assert!(schemas.fetch(SchemaId(99)).await.is_ok());
    assert_eq!(refused(decoder.decode(&framed)).0, Reason::SchemaNotFound, "still within the time");

    schemas.declare_unknown(SchemaId(99), Duration::ZERO);
    assert_eq!(decoder.decode(&framed), Err(Undecoded::AwaitsSchema(SchemaId(99))));
    schemas.fetch(SchemaId(99)).await.unwrap();
    assert!(decoder.decode(&framed).is_ok());
}

#[test]
fn nothing_that_is_printed_holds_data() {
    let decoder = decoder(&source(ValueFormat::Json));
    assert_eq!(format!("{decoder:?}"), "Decoder { topic: \"shop.products\", .. }");
}
