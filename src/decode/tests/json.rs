//! JSON text.

use proptest::prelude::*;

use super::{fields, read_json, reason, wanted};
use crate::decode::Limits;
use crate::fault::Reason;
use crate::projection::{Value, Wanted};

fn read(text: &str) -> Result<Value, crate::fault::RecordFault> {
    read_json(text.as_bytes(), &Wanted::All, Limits::default())
}

fn number(text: &str) -> Value {
    Value::Number(text.into())
}

#[test]
fn numbers_keep_the_digits_of_the_source() {
    for (text, value) in [
        ("0", Value::Int(0)),
        ("9007199254740993", Value::Int(9_007_199_254_740_993)),
        ("-9223372036854775808", Value::Int(i64::MIN)),
        ("9223372036854775808", number("9223372036854775808")),
        ("18446744073709551615", number("18446744073709551615")),
        ("327267367867168100000", number("327267367867168100000")),
        ("1e3", number("1e3")),
        ("1.50", number("1.50")),
        ("-0", number("-0")),
        ("0.1", number("0.1")),
        ("1E+400", number("1E+400")),
    ] {
        assert_eq!(read(text).unwrap(), value, "{text}");
        assert_eq!(read(&format!(" [ {text} ] ")).unwrap(), Value::List(vec![value]), "{text}");
    }
}

#[test]
fn what_is_no_json_number_is_refused() {
    for text in ["NaN", "Infinity", "-Infinity", "01", "1.", ".5", "+1", "1e", "-", "0x10", "--1", "1_000"] {
        let reason = reason(read(text));
        assert!(matches!(reason, Reason::InvalidJson | Reason::TrailingBytes), "{text}: {reason}");
        assert_eq!(super::reason(read(&format!("[{text}]"))), Reason::InvalidJson, "{text}");
    }
}

#[test]
fn texts_are_exact() {
    let text = r#"{"plain":"Lämpchen","escaped":"a\u0000\n\"\\\ud83d\ude00","":"","back\\slash":"\\\\"}"#;
    let value = fields([
        ("plain", Value::from("Lämpchen")),
        ("escaped", Value::from("a\0\n\"\\😀")),
        ("", Value::from("")),
        ("back\\slash", Value::from("\\\\")),
    ]);
    assert_eq!(read(text).unwrap(), value);
}

#[test]
fn a_text_without_escapes_shares_the_records_memory() {
    let text = bytes::Bytes::from_static(br#"{"name":"Lamp"}"#);
    let value = super::json_reader::decode(&text, None, Limits::default()).unwrap();
    let Some(Value::Text(name)) = value.field("name") else { panic!("a text") };
    assert!(text.as_ptr_range().contains(&name.as_ptr()));
}

#[test]
fn bytes_that_are_no_text_are_refused_wherever_they_stand() {
    for wanted in [Wanted::All, wanted("n")] {
        for bad in [
            &b"{\"n\":\"\xff\"}"[..],
            b"{\"other\":\"\xff\",\"n\":1}",
            b"{\"\xff\":1}",
            b"{\"n\":\"\\ud800\"}",
            b"{\"n\":\"\\udc00x\"}",
            b"{\"n\":\"\\ud800\\u0041\"}",
            b"{\"n\":\"\\ud800\\n\"}",
        ] {
            assert_eq!(reason(read_json(bad, &wanted, Limits::default())), Reason::InvalidUtf8);
        }
    }
}

#[test]
fn empty_broken_and_trailing_text_has_its_reason() {
    for text in [
        "",
        " ",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "nul",
        "\"a",
        "\u{feff}{}",
        "{\"a\":}",
        "[1 2]",
        "]",
    ] {
        assert_eq!(reason(read(text)), Reason::InvalidJson, "{text}");
    }
    for text in ["{} {}", "1 2", "{}x", "null,"] {
        assert_eq!(reason(read(text)), Reason::TrailingBytes, "{text}");
    }
}

#[test]
fn only_wanted_fields_are_built_and_the_last_of_a_name_wins() {
    let text = br#"{"skip":{"deep":[1,{"x":"y"}]},"price":{"cents":900,"currency":"EUR"},"lines":[{"sku":"a","n":1},{"n":2}],"name":"old","name":"new"}"#;
    let value = read_json(text, &wanted("name, price.cents, lines.sku, absent"), Limits::default()).unwrap();
    let expected = fields([
        ("price", fields([("cents", Value::Int(900))])),
        ("lines", Value::List(vec![fields([("sku", Value::from("a"))]), fields([])])),
        ("name", Value::from("new")),
    ]);
    assert_eq!(value, expected);
    assert_eq!(read_json(text, &wanted(""), Limits::default()).unwrap(), fields([]));
    assert_eq!(read_json(b"[1]", &wanted("a"), Limits::default()).unwrap(), Value::List(vec![Value::Int(1)]));
}

#[test]
fn brackets_without_end_are_too_deep_and_harm_nothing() {
    for wanted in [Wanted::All, wanted("b")] {
        for open in ["[", "{\"a\":", "[{\"a\":"] {
            let text = open.repeat(100_000);
            assert_eq!(reason(read_json(text.as_bytes(), &wanted, Limits::default())), Reason::TooDeep);
            let inside = format!("{{\"a\":{text}");
            assert_eq!(reason(read_json(inside.as_bytes(), &wanted, Limits::default())), Reason::TooDeep);
        }
    }
}

#[test]
fn the_limits_are_exact_and_the_same_for_what_is_skipped() {
    let limits = Limits { max_depth: 3, max_items: 4, ..Limits::default() };
    for wanted in [Wanted::All, wanted("b")] {
        let read = |text: &str| read_json(text.as_bytes(), &wanted, limits);
        assert!(read(r#"{"a":[[1]]}"#).is_ok());
        assert_eq!(reason(read(r#"{"a":[[[]]]}"#)), Reason::TooDeep);
        assert!(read(r#"{"a":[1,2,3]}"#).is_ok());
        assert_eq!(reason(read(r#"{"a":[1,2,3,4]}"#)), Reason::TooManyItems);
        assert_eq!(reason(read(r#"{"a":[1],"b":[2],"c":1}"#)), Reason::TooManyItems);
    }
}

#[test]
fn the_highest_depth_that_can_be_configured_fits_the_stack() {
    let depth = crate::decode::MAX_DEPTH_CEILING;
    let limits = Limits { max_depth: depth, ..Limits::default() };
    let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read_json(text.as_bytes(), &Wanted::All, limits).is_ok());
}

#[test]
fn a_fault_names_declared_fields_and_no_value() {
    let fault =
        read_json(br#"{"price":{"cents":secret}}"#, &wanted("price.cents"), Limits::default()).unwrap_err();
    assert!(fault.detail.starts_with("value.price.cents: not valid JSON at byte"), "{}", fault.detail);
    assert!(!fault.detail.contains("secret"));
    let fault = read_json(br#"{"secret":{"secret":secret}}"#, &Wanted::All, Limits::default()).unwrap_err();
    assert!(!fault.detail.contains("secret"), "{}", fault.detail);
}

/// Any JSON document, as serde_json has it.
fn document() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        any::<u64>().prop_map(serde_json::Value::from),
        any::<f64>().prop_map(serde_json::Value::from),
        any::<String>().prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
            prop::collection::btree_map("[a-d]|\\PC{0,4}", inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Another reading of a document, by another parser's values.
fn expected(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(flag) => Value::Bool(*flag),
        serde_json::Value::Number(number) => {
            number.as_i64().map_or_else(|| self::number(&number.to_string()), Value::Int)
        }
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => Value::List(items.iter().map(expected).collect()),
        serde_json::Value::Object(object) => Value::Record(
            object.iter().map(|(name, value)| (name.as_str().into(), expected(value))).collect(),
        ),
    }
}

proptest! {
    #[test]
    fn any_document_reads_as_another_parser_reads_it(json in document(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&json) } else { serde_json::to_string(&json) }.unwrap();
        prop_assert_eq!(read(&text).unwrap(), expected(&json));
    }

    #[test]
    fn any_number_comes_back_digit_by_digit(text in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,5})?") {
        let back = match read(&text).unwrap() {
            Value::Int(number) => number.to_string(),
            Value::Number(number) => number.to_string(),
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        prop_assert_eq!(back, text);
    }

    #[test]
    fn random_bytes_are_accepted_where_another_parser_accepts_them(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let ours = read_json(&bytes, &Wanted::All, Limits::default());
        prop_assert_eq!(ours.is_ok(), serde_json::from_slice::<serde_json::Value>(&bytes).is_ok());
    }

    #[test]
    fn broken_documents_are_broken_whatever_is_wanted(json in document(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = serde_json::to_vec(&json).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let whole = read_json(&bytes, &Wanted::All, Limits::default());
        let some = read_json(&bytes, &wanted("a.b, c"), Limits::default());
        prop_assert_eq!(whole.is_ok(), some.is_ok());
    }
}
