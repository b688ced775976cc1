//! Avro's binary encoding, case by case.

use super::{fields, long, read_avro, read_avro_within, reason, wanted};
use crate::decode::{Limits, MAX_DEPTH_CEILING};
use crate::fault::Reason;
use crate::projection::{Value, Wanted};

const NODE: &str = r#"{"type":"record","name":"Node","fields":[
    {"name":"v","type":"long"},{"name":"next","type":["null","Node"]}]}"#;

/// A list of nodes, each in the one before.
fn nodes(depth: usize) -> Vec<u8> {
    let mut bytes = [0x0e, 0x02].repeat(depth - 1);
    bytes.extend([0x0e, 0x00]);
    bytes
}

#[test]
fn a_recursive_schema_is_read_to_the_limit_and_no_deeper() {
    let third = fields([("v", Value::Int(7)), ("next", Value::Null)]);
    let second = fields([("v", Value::Int(7)), ("next", third)]);
    let first = fields([("v", Value::Int(7)), ("next", second)]);
    assert_eq!(read_avro(NODE, &Wanted::All, &nodes(3)).unwrap(), first);
    assert_eq!(read_avro(NODE, &wanted("v"), &nodes(3)).unwrap(), fields([("v", Value::Int(7))]));
    for wanted in [Wanted::All, wanted("v"), wanted("next.next.v")] {
        assert!(read_avro(NODE, &wanted, &nodes(64)).is_ok());
        assert_eq!(reason(read_avro(NODE, &wanted, &nodes(65))), Reason::TooDeep);
        assert_eq!(reason(read_avro(NODE, &wanted, &nodes(200_000))), Reason::TooDeep);
    }
}

#[test]
fn the_highest_depth_that_can_be_configured_fits_the_stack() {
    let limits = Limits { max_depth: MAX_DEPTH_CEILING, ..Limits::default() };
    for wanted in [Wanted::All, wanted("v")] {
        assert!(read_avro_within(NODE, &wanted, &nodes(MAX_DEPTH_CEILING), limits).is_ok());
    }
}

#[test]
fn a_record_that_contains_itself_without_end_is_too_deep() {
    let schema = r#"{"type":"record","name":"A","fields":[{"name":"a","type":"A"},{"name":"b","type":"A"}]}"#;
    for wanted in [Wanted::All, wanted(""), wanted("a.b")] {
        assert_eq!(reason(read_avro(schema, &wanted, &[])), Reason::TooDeep);
    }
}

#[test]
fn records_without_bytes_do_not_multiply_without_bound() {
    // Each record holds the one before twice: 2^60 records in no bytes at all.
    let levels: Vec<String> = (1..60)
        .map(|level| {
            let before = level - 1;
            format!(
                r#"{{"name":"f{level}","type":{{"type":"record","name":"R{level}","fields":[
                {{"name":"a","type":"R{before}"}},{{"name":"b","type":"R{before}"}}]}}}}"#
            )
        })
        .collect();
    let first = r#"{"type":"record","name":"R0","fields":[{"name":"n","type":"null"}]}"#;
    let schema = format!(
        r#"{{"type":"record","name":"All","fields":[{{"name":"f0","type":{first}}},{}]}}"#,
        levels.join(",")
    );
    assert_eq!(reason(read_avro(&schema, &Wanted::All, &[])), Reason::TooManyItems);
    assert_eq!(read_avro(&schema, &wanted(""), &[]).unwrap(), fields([]));
}

#[test]
fn counts_and_lengths_are_checked_before_anything_is_allocated() {
    let long_list = r#"{"type":"array","items":"long"}"#;
    let null_list = r#"{"type":"array","items":"null"}"#;
    let map = r#"{"type":"map","values":"null"}"#;
    let huge = [long(i64::MAX), vec![0]].concat();
    for wanted in [Wanted::All, wanted("a")] {
        assert_eq!(reason(read_avro(long_list, &wanted, &huge)), Reason::InvalidAvro);
        assert_eq!(reason(read_avro(map, &wanted, &huge)), Reason::InvalidAvro);
        assert_eq!(reason(read_avro(null_list, &wanted, &huge)), Reason::TooManyItems);
        let smallest = [long(i64::MIN), long(0), vec![0]].concat();
        assert_eq!(reason(read_avro(null_list, &wanted, &smallest)), Reason::TooManyItems);
        assert_eq!(
            reason(read_avro(null_list, &wanted, &[long(100_001), vec![0]].concat())),
            Reason::TooManyItems
        );
        assert!(read_avro(null_list, &wanted, &[long(100_000), vec![0]].concat()).is_ok());
        let in_blocks = [long(60_000), long(60_000), vec![0]].concat();
        assert_eq!(reason(read_avro(null_list, &wanted, &in_blocks)), Reason::TooManyItems);
    }
    for text in ["string", "bytes"] {
        assert_eq!(
            reason(read_avro(&format!("\"{text}\""), &Wanted::All, &long(i64::MAX))),
            Reason::InvalidAvro
        );
        assert_eq!(reason(read_avro(&format!("\"{text}\""), &Wanted::All, &long(-1))), Reason::InvalidAvro);
    }
    let fixed = r#"{"type":"fixed","name":"F","size":9223372036854775807}"#;
    assert_eq!(reason(read_avro(fixed, &Wanted::All, &[1, 2])), Reason::InvalidAvro);
}

#[test]
fn blocks_with_sizes_are_read_and_their_sizes_checked() {
    let schema = r#"{"type":"array","items":"long"}"#;
    let good = [long(1), long(7), long(-2), long(2), long(8), long(9), long(0)].concat();
    let items = |numbers: &[i64]| Value::List(numbers.iter().copied().map(Value::Int).collect());
    assert_eq!(read_avro(schema, &Wanted::All, &good).unwrap(), items(&[7, 8, 9]));
    for size in [1, 3] {
        let bad = [long(-2), long(size), long(8), long(9), long(0), long(0)].concat();
        assert_eq!(reason(read_avro(schema, &Wanted::All, &bad)), Reason::InvalidAvro);
    }
    let record = r#"{"type":"record","name":"R","fields":[
        {"name":"list","type":{"type":"array","items":"long"}},{"name":"after","type":"int"}]}"#;
    let bytes = [good, long(5)].concat();
    assert_eq!(read_avro(record, &wanted("after"), &bytes).unwrap(), fields([("after", Value::Int(5))]));
}

#[test]
fn the_last_of_a_map_key_wins_and_only_wanted_entries_are_built() {
    let schema = r#"{"type":"map","values":"long"}"#;
    let entry =
        |key: &str, number: i64| [long(i64::try_from(key.len()).unwrap()), key.into(), long(number)].concat();
    let bytes = [long(3), entry("a", 1), entry("b", 2), entry("a", 3), long(0)].concat();
    assert_eq!(
        read_avro(schema, &Wanted::All, &bytes).unwrap(),
        fields([("a", Value::Int(3)), ("b", Value::Int(2))])
    );
    assert_eq!(read_avro(schema, &wanted("a.x, c"), &bytes).unwrap(), fields([("a", Value::Int(3))]));
}

#[test]
fn wanted_fields_are_found_in_records_unions_lists_and_maps() {
    let schema = r#"{"type":"record","name":"Order","namespace":"shop","fields":[
        {"name":"id","type":"string"},
        {"name":"note","type":["null","string"]},
        {"name":"customer","type":["null",{"type":"record","name":"Customer","fields":[
            {"name":"name","type":"string"},{"name":"age","type":"int"}]}]},
        {"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":[
            {"name":"sku","type":"string"},{"name":"count","type":"int"}]}}},
        {"name":"buyers","type":{"type":"map","values":"Customer"}}]}"#;
    let customer = [&[2, b'A'][..], &long(40)].concat();
    let bytes =
        [&[2, b'1'][..], &[2, 2, b'n'], &[2], &customer, &[2, 2, b's', 6, 0], &[2, 2, b'k'], &customer, &[0]]
            .concat();
    let paths = "customer.age, lines.count, buyers.k.name, absent.x";
    let expected = fields([
        ("customer", fields([("age", Value::Int(40))])),
        ("lines", Value::List(vec![fields([("count", Value::Int(3))])])),
        ("buyers", fields([("k", fields([("name", Value::from("A"))]))])),
    ]);
    assert_eq!(read_avro(schema, &wanted(paths), &bytes).unwrap(), expected);
    assert_eq!(read_avro(schema, &wanted(""), &bytes).unwrap(), fields([]));
    let whole = read_avro(schema, &Wanted::All, &bytes).unwrap();
    assert_eq!(whole.field("note"), Some(&Value::from("n")));
    for end in 0..bytes.len() {
        for wanted in [Wanted::All, wanted(paths), wanted("")] {
            assert_eq!(reason(read_avro(schema, &wanted, &bytes[..end])), Reason::InvalidAvro, "{end}");
        }
    }
    let trailing = [&bytes[..], &[1, 2, 3]].concat();
    assert_eq!(reason(read_avro(schema, &wanted(paths), &trailing)), Reason::TrailingBytes);
}

#[test]
fn a_fault_names_the_field_and_no_value() {
    let schema = r#"{"type":"record","name":"R","fields":[{"name":"who","type":{"type":"record","name":"P","fields":[
        {"name":"id","type":{"type":"string","logicalType":"uuid"}}]}}]}"#;
    let fault = read_avro(schema, &Wanted::All, &[12, b's', b'e', b'c', b'r', b'e', b't']).unwrap_err();
    assert_eq!(fault.reason, Reason::InvalidValue);
    assert_eq!(fault.detail, "value.who.id: a text of the logical type uuid is no UUID");
}

#[test]
fn wrong_numbers_of_symbols_and_branches_and_texts_that_are_none_are_refused() {
    let symbols = r#"{"type":"enum","name":"E","symbols":["NEW","PAID"]}"#;
    assert_eq!(read_avro(symbols, &Wanted::All, &[2]).unwrap(), Value::from("PAID"));
    for bytes in [&[4][..], &[1], &long(i64::from(i32::MAX) + 1)] {
        assert_eq!(reason(read_avro(symbols, &Wanted::All, bytes)), Reason::InvalidAvro);
    }
    let union = r#"["null","long"]"#;
    for bytes in [&[4, 0][..], &[1], &long(i64::MAX)] {
        assert_eq!(reason(read_avro(union, &Wanted::All, bytes)), Reason::InvalidAvro);
    }
    assert_eq!(reason(read_avro("\"boolean\"", &Wanted::All, &[2])), Reason::InvalidAvro);
    assert_eq!(reason(read_avro("\"string\"", &Wanted::All, &[2, 0xff])), Reason::InvalidUtf8);
    assert_eq!(reason(read_avro("\"null\"", &Wanted::All, &[2])), Reason::TrailingBytes);
}

#[test]
fn decimals_over_bytes_and_fixed_agree() {
    let bytes = r#"{"type":"bytes","logicalType":"decimal","precision":38,"scale":10}"#;
    let fixed = r#"{"type":"fixed","name":"F","size":9,"logicalType":"decimal","precision":20,"scale":10}"#;
    let of_bytes = read_avro(bytes, &Wanted::All, &[2, 0xff]).unwrap();
    let of_fixed = read_avro(fixed, &Wanted::All, &[0xff; 9]).unwrap();
    assert_eq!(of_bytes, of_fixed);
    let Value::Decimal(number) = of_bytes else { panic!("a decimal") };
    assert_eq!(number.to_plain_string(), "-0.0000000001");
}
