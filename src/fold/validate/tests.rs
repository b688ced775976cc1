use bigdecimal::BigDecimal;
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::fold::{Assign, Change, RowChange, validate};
use crate::projection::change::{Assignment, Conditions, Effect};
use crate::projection::{Changes, ColumnId, EventChange, Operation, Ownership, Table, TableId};

const TEXT: ColumnType = ColumnType::Text { max_chars: None };
const NUMERIC: ColumnType = ColumnType::Numeric { precision_scale: None };

fn column(kind: ColumnType) -> Column {
    Column { name: "c".into(), kind, nullability: Nullability::Nullable, default: None, generated: None }
}

fn fitted(kind: ColumnType, value: impl Into<Value>) -> Result<Datum, Reason> {
    fit("t", &column(kind), value.into()).map_err(|fault| {
        assert_eq!((fault.stage, fault.column.as_deref()), (Stage::Validate, Some("t.c")));
        fault.reason
    })
}

fn number(text: &str) -> Value {
    Value::Number(text.into())
}

fn numeric(text: &str) -> Datum {
    Datum::Numeric(text.parse::<BigDecimal>().expect("a number"))
}

fn table() -> Table {
    let named = |name: &str, kind| Column { name: name.into(), ..column(kind) };
    let mut columns = vec![
        named("id", ColumnType::BigInt),
        named("name", ColumnType::Text { max_chars: Some(3) }),
        named("count", ColumnType::Integer),
        named("search", ColumnType::Catalogue("tsvector".into())),
    ];
    columns[1].nullability = Nullability::NotNull;
    columns[3].generated = Some("to_tsvector('simple', name)".into());
    Table {
        name: "t".into(),
        ownership: Ownership::OwnedStored,
        primary_key: vec![ColumnId(0)],
        columns,
        indexes: Vec::new(),
    }
}

fn upsert(list: Vec<(usize, Effect, Value)>) -> EventChange {
    let assignment = |(column, effect, value)| Assignment { column: ColumnId(column), effect, value };
    EventChange {
        table: TableId(0),
        key: vec![1.into()],
        aggregate: Some("a".into()),
        operation: Operation::Upsert(list.into_iter().map(assignment).collect()),
        conditions: Conditions::default(),
    }
}

fn validated(change: EventChange) -> Result<RowChange, RecordFault> {
    validate(&[table()], [change]).map(|mut rows| rows.remove(0))
}

fn reason_of(change: EventChange) -> Option<(Reason, Option<String>)> {
    validated(change).err().map(|fault| (fault.reason, fault.column))
}

#[test]
fn integers_fit_by_range_and_by_value_not_by_spelling() {
    for (kind, min, max) in [
        (ColumnType::SmallInt, -32_768, 32_767),
        (ColumnType::Integer, -2_147_483_648, 2_147_483_647),
        (ColumnType::BigInt, i64::MIN, i64::MAX),
    ] {
        for limit in [min, max] {
            assert_eq!(fitted(kind.clone(), limit), Ok(Datum::Int(limit)));
            let beyond = i128::from(limit) + i128::from(limit.signum());
            assert_eq!(fitted(kind.clone(), number(&beyond.to_string())), Err(Reason::ValueOutOfRange));
        }
    }
    assert_eq!(fitted(ColumnType::SmallInt, 32_768), Err(Reason::ValueOutOfRange));
    assert_eq!(fitted(ColumnType::BigInt, number("1e3")), Ok(Datum::Int(1000)));
    assert_eq!(fitted(ColumnType::BigInt, Value::Double(3.0)), Ok(Datum::Int(3)));
    assert_eq!(fitted(ColumnType::BigInt, number("18446744073709551615")), Err(Reason::ValueOutOfRange));
    assert_eq!(fitted(ColumnType::BigInt, number("1.5")), Err(Reason::NotAnInteger));
    assert_eq!(fitted(ColumnType::BigInt, Value::Double(1.5)), Err(Reason::NotAnInteger));
    assert_eq!(fitted(ColumnType::BigInt, Value::Double(f64::NAN)), Err(Reason::InvalidValue));
    assert_eq!(fitted(ColumnType::BigInt, "12"), Err(Reason::WrongType));
    assert_eq!(fitted(ColumnType::BigInt, true), Err(Reason::WrongType));
}

#[test]
fn numeric_is_exact_or_refused() {
    let two = || ColumnType::Numeric { precision_scale: Some((10, 2)) };
    assert_eq!(fitted(two(), number("123.450")), Ok(numeric("123.45")));
    assert_eq!(fitted(two(), number("1.005")), Err(Reason::DecimalScaleLoss));
    assert_eq!(fitted(two(), number("123456789.00")), Err(Reason::ValueOutOfRange));
    assert_eq!(fitted(two(), Value::Double(0.1)), Ok(numeric("0.1")));
    assert_eq!(
        fitted(NUMERIC, Value::Decimal("-0.0000000001".parse().expect("number"))),
        Ok(numeric("-0.0000000001"))
    );
    assert_eq!(fitted(NUMERIC, number("327267367867168100000")), Ok(numeric("327267367867168100000")));
    assert_eq!(fitted(NUMERIC, 9_007_199_254_740_993), Ok(numeric("9007199254740993")));
    assert_eq!(fitted(NUMERIC, number("1e131071")), Ok(numeric("1e131071")));
    assert_eq!(fitted(NUMERIC, number("1e400000")), Err(Reason::ValueOutOfRange));
    assert_eq!(fitted(NUMERIC, number("1e999999999")), Err(Reason::ValueOutOfRange));
    assert_eq!(fitted(NUMERIC, number("1e-999999999")), Err(Reason::DecimalScaleLoss));
    assert_eq!(fitted(NUMERIC, "1.5"), Err(Reason::WrongType));
}

#[test]
fn numeric_is_kept_normalised_so_that_equal_keys_are_one_row() {
    for text in ["1000", "1e3", "1000.00"] {
        let Ok(Datum::Numeric(number)) = fitted(NUMERIC, number(text)) else { panic!("{text} does not fit") };
        assert_eq!(number.as_bigint_and_exponent(), (1.into(), -3), "{text}");
    }
}

#[test]
fn floating_columns_take_what_they_can_give_back() {
    for text in ["0.1", "1e23", "0.10000000000000001", "5e-324", "-1.5", "9007199254740992"] {
        let expected = text.parse().expect("a double");
        assert_eq!(fitted(ColumnType::Double, number(text)), Ok(Datum::Double(expected)), "{text}");
    }
    for text in ["9007199254740993", "0.100000000000000005", "18446744073709551615"] {
        assert_eq!(fitted(ColumnType::Double, number(text)), Err(Reason::InvalidValue), "{text}");
    }
    for text in ["1e400", "-1e400", "1e-400"] {
        assert_eq!(fitted(ColumnType::Double, number(text)), Err(Reason::ValueOutOfRange), "{text}");
    }
    assert_eq!(fitted(ColumnType::Double, i64::MIN), Ok(Datum::Double(-9_223_372_036_854_775_808.0)));
    assert_eq!(fitted(ColumnType::Double, i64::MAX), Err(Reason::InvalidValue));
    assert_eq!(fitted(ColumnType::Double, Value::Double(f64::INFINITY)), Err(Reason::InvalidValue));
    assert_eq!(fitted(ColumnType::Real, Value::Double(f64::NAN)), Err(Reason::InvalidValue));
    let tenth = Ok(Datum::Double(f64::from(0.1_f32)));
    assert_eq!(fitted(ColumnType::Real, number("0.1")), tenth);
    assert_eq!(fitted(ColumnType::Real, Value::Double(0.1)), tenth);
    assert_eq!(fitted(ColumnType::Real, Value::Double(f64::from(0.1_f32))), tenth);
    assert_eq!(fitted(ColumnType::Real, number("16777217")), Err(Reason::InvalidValue));
    assert_eq!(fitted(ColumnType::Real, number("1e39")), Err(Reason::ValueOutOfRange));
}

#[test]
fn text_takes_scalars_and_counts_characters() {
    let three = || ColumnType::Text { max_chars: Some(3) };
    assert_eq!(fitted(three(), "äöü"), Ok(Datum::Text("äöü".into())));
    assert_eq!(fitted(three(), "abcd"), Err(Reason::ValueTooLong));
    assert_eq!(fitted(three(), 1234), Err(Reason::ValueTooLong));
    assert_eq!(fitted(TEXT, number("1e3")), Ok(Datum::Text("1e3".into())));
    assert_eq!(fitted(TEXT, Value::Date(0)), Ok(Datum::Text("1970-01-01".into())));
    assert_eq!(fitted(TEXT, "ab\0cd"), Err(Reason::NulInText));
    assert_eq!(fitted(TEXT, Value::Bytes(Bytes::new())), Err(Reason::WrongType));
    assert_eq!(fitted(TEXT, Value::List(vec![])), Err(Reason::WrongType));
}

#[test]
fn bytes_booleans_and_uuids_take_their_own_kind() {
    let nul = Bytes::from_static(b"ab\0cd");
    assert_eq!(fitted(ColumnType::Bytes, Value::Bytes(nul.clone())), Ok(Datum::Bytes(nul)));
    assert_eq!(fitted(ColumnType::Bytes, "ab"), Err(Reason::WrongType));
    assert_eq!(fitted(ColumnType::Boolean, true), Ok(Datum::Bool(true)));
    for other in [Value::Int(1), "true".into()] {
        assert_eq!(fitted(ColumnType::Boolean, other), Err(Reason::WrongType));
    }
    let uuid = Ok(Datum::Uuid([0xab; 16]));
    assert_eq!(fitted(ColumnType::Uuid, Value::Uuid([0xab; 16])), uuid);
    for text in [
        "abababab-abab-abab-abab-abababababab",
        "ABABABABABABABABABABABABABABABAB",
        "urn:uuid:abababab-abab-abab-abab-abababababab",
    ] {
        assert_eq!(fitted(ColumnType::Uuid, text), uuid, "{text}");
    }
    assert_eq!(fitted(ColumnType::Uuid, "xyz"), Err(Reason::InvalidValue));
    assert_eq!(fitted(ColumnType::Uuid, Value::Bytes(Bytes::from_static(&[0; 16]))), Err(Reason::WrongType));
}

#[test]
fn times_keep_their_meaning() {
    assert_eq!(fitted(ColumnType::Date, "2000-02-29"), Ok(Datum::Date(11_016)));
    assert_eq!(fitted(ColumnType::Date, Value::Date(7)), Ok(Datum::Date(7)));
    assert_eq!(fitted(ColumnType::Date, Value::Date(i32::MAX)), Err(Reason::ValueOutOfRange));
    assert_eq!(fitted(ColumnType::Date, Value::TimestampTz(0)), Err(Reason::WrongType));
    assert_eq!(fitted(ColumnType::Time, Value::Time(86_400_000_000)), Err(Reason::ValueOutOfRange));
    assert_eq!(fitted(ColumnType::Time, "12:00"), Ok(Datum::Time(43_200_000_000)));
    assert_eq!(fitted(ColumnType::Timestamp, "1970-01-01T00:00:00"), Ok(Datum::Timestamp(0)));
    assert_eq!(fitted(ColumnType::Timestamp, "1970-01-01T00:00:00Z"), Err(Reason::InvalidValue));
    assert_eq!(fitted(ColumnType::Timestamp, Value::TimestampTz(0)), Err(Reason::WrongType));
    assert_eq!(fitted(ColumnType::TimestampTz, "1970-01-01T01:00:00+01:00"), Ok(Datum::TimestampTz(0)));
    assert_eq!(fitted(ColumnType::TimestampTz, "1970-01-01T00:00:00"), Err(Reason::InvalidValue));
    assert_eq!(fitted(ColumnType::TimestampTz, Value::Timestamp(0)), Err(Reason::WrongType));
    assert_eq!(fitted(ColumnType::TimestampTz, 1_700_000_000), Err(Reason::WrongType));
    assert_eq!(fitted(ColumnType::TimestampTz, Value::TimestampTz(i64::MIN)), Err(Reason::ValueOutOfRange));
}

#[test]
fn json_takes_any_value_and_catalogue_types_take_text() {
    let tree =
        || Value::Record(vec![("n".into(), number("1.50")), ("l".into(), Value::List(vec![Value::Null]))]);
    assert_eq!(fitted(ColumnType::Json, tree()), Ok(Datum::Json(r#"{"n":1.50,"l":[null]}"#.into())));
    assert_eq!(fitted(ColumnType::Json, "a"), Ok(Datum::Json("\"a\"".into())));
    assert_eq!(fitted(ColumnType::Json, Value::Null), Ok(Datum::Null));
    assert_eq!(fitted(ColumnType::Json, Value::List(vec!["\0".into()])), Err(Reason::NulInText));
    assert_eq!(fitted(ColumnType::Json, Value::Bytes(Bytes::new())), Err(Reason::WrongType));
    let inet = || ColumnType::Catalogue("inet".into());
    assert_eq!(fitted(inet(), "10.0.0.1"), Ok(Datum::Catalogue("10.0.0.1".into())));
    assert_eq!(fitted(inet(), tree()), Ok(Datum::Catalogue(r#"{"n":1.50,"l":[null]}"#.into())));
    assert_eq!(fitted(inet(), Value::Bytes(Bytes::new())), Err(Reason::WrongType));
}

#[test]
fn a_record_gives_its_changes_in_order_with_assignments_by_column() {
    let first = upsert(vec![(2, Effect::Add, 5.into()), (1, Effect::Set, "abc".into())]);
    let second = EventChange { operation: Operation::Delete, ..upsert(vec![]) };
    let mut changes = Changes::new();
    changes.push(first);
    changes.push(second);
    let rows = validate(&[table()], changes.take()).expect("fits");
    let assignments = vec![
        (ColumnId(1), Assign::Set(Datum::Text("abc".into()))),
        (ColumnId(2), Assign::Add(Datum::Int(5))),
    ];
    assert_eq!(
        rows.iter().map(|row| &row.change).collect::<Vec<_>>(),
        [&Change::upsert(assignments), &Change::delete()]
    );
    assert_eq!(rows[0].aggregate, Some(Datum::Text("a".into())));
    assert_eq!(rows[0].key[..], [Datum::Int(1)]);
}

#[test]
fn a_fault_in_one_change_leaves_none_of_the_record() {
    let mut changes = Changes::new();
    changes.push(upsert(vec![]));
    changes.push(upsert(vec![(2, Effect::Set, "x".into())]));
    assert!(validate(&[table()], changes.take()).is_err());
    assert!(changes.as_slice().is_empty());
}

#[test]
fn nulls_are_refused_where_the_row_could_not_have_them() {
    let in_column = |reason, column: &str| Some((reason, Some(format!("t.{column}"))));
    let key = EventChange { key: vec![Value::Null], ..upsert(vec![]) };
    assert_eq!(reason_of(key), in_column(Reason::NullKey, "id"));
    let aggregate = EventChange { aggregate: Some(Value::Null), ..upsert(vec![]) };
    assert_eq!(reason_of(aggregate), in_column(Reason::NullKey, "projector_aggregate"));
    assert_eq!(reason_of(upsert(vec![(1, Effect::Set, Value::Null)])), in_column(Reason::NotNull, "name"));
    assert_eq!(reason_of(upsert(vec![(2, Effect::Add, Value::Null)])), in_column(Reason::WrongType, "count"));
    assert_eq!(reason_of(upsert(vec![(2, Effect::Set, Value::Null)])), None);
}

#[test]
fn only_numbers_can_be_added_and_only_to_numbers() {
    for (column, value, reason) in [
        (1, Value::Int(1), Reason::WrongType),
        (2, "1".into(), Reason::WrongType),
        (2, number("0.5"), Reason::NotAnInteger),
        (2, number("3e9"), Reason::ValueOutOfRange),
    ] {
        assert_eq!(
            reason_of(upsert(vec![(column, Effect::Add, value)])).map(|(reason, _)| reason),
            Some(reason)
        );
    }
}

#[test]
fn changes_that_the_table_cannot_have_are_refused_and_not_a_panic() {
    for change in [
        EventChange { table: TableId(9), ..upsert(vec![]) },
        EventChange { key: vec![], ..upsert(vec![]) },
        EventChange { aggregate: None, ..upsert(vec![]) },
        upsert(vec![(9, Effect::Set, 1.into())]),
        upsert(vec![(0, Effect::Set, 1.into())]),
        upsert(vec![(3, Effect::Set, "x".into())]),
        upsert(vec![(2, Effect::Set, 1.into()), (2, Effect::Add, 1.into())]),
    ] {
        assert_eq!(reason_of(change), Some((Reason::Rejected, None)));
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        "-?[0-9]{1,20}(\\.[0-9]{1,5})?(e-?[0-9]{1,10})?".prop_map(|text| number(&text)),
        (any::<i128>(), any::<i64>()).prop_map(|(n, scale)| Value::Decimal(BigDecimal::new(n.into(), scale))),
        any::<f64>().prop_map(Value::Double),
        "SECRET.{0,8}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..8).prop_map(|bytes| Value::Bytes(bytes.into())),
        any::<[u8; 16]>().prop_map(Value::Uuid),
        any::<i32>().prop_map(Value::Date),
        any::<i64>().prop_map(Value::Time),
        any::<i64>().prop_map(Value::Timestamp),
        any::<i64>().prop_map(Value::TimestampTz),
    ];
    scalar.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|map| Value::Record(
                map.into_iter().map(|(name, value)| (name.into(), value)).collect()
            )),
        ]
    })
}

fn any_type() -> impl Strategy<Value = ColumnType> {
    prop_oneof![
        prop::option::of(0..9_u32).prop_map(|max_chars| ColumnType::Text { max_chars }),
        Just(ColumnType::Boolean),
        Just(ColumnType::SmallInt),
        Just(ColumnType::Integer),
        Just(ColumnType::BigInt),
        prop::option::of((1..40_u32, -5..40_i32))
            .prop_map(|precision_scale| ColumnType::Numeric { precision_scale }),
        Just(ColumnType::Real),
        Just(ColumnType::Double),
        Just(ColumnType::Date),
        Just(ColumnType::Time),
        Just(ColumnType::Timestamp),
        Just(ColumnType::TimestampTz),
        Just(ColumnType::Uuid),
        Just(ColumnType::Json),
        Just(ColumnType::Bytes),
        Just(ColumnType::Catalogue("inet".into())),
    ]
}

proptest! {
    #[test]
    fn no_value_panics_and_no_fault_quotes_one(kind in any_type(), value in any_value()) {
        if let Err(fault) = fit("t", &column(kind), value) {
            prop_assert!(!fault.to_string().contains("SECRET"));
            prop_assert_eq!(fault.stage, Stage::Validate);
        }
    }
}
