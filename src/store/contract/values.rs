//! Every type of column at the ends of its range.

use std::str::FromStr;

use bigdecimal::BigDecimal;

use super::{Harness, Scene, advance, column, item, required, set, table, text};
use crate::fold::{Change, RowChange};
use crate::projection::{Column, ColumnId, ColumnType, Datum, Ownership, Table, TableId};
use crate::store::Applied;

/// A value and its text in the form that all stores share.
type Case = (Datum, &'static str);

fn numeric(text: &str) -> Datum {
    Datum::Numeric(BigDecimal::from_str(text).unwrap().normalized())
}

fn bytes(bytes: &'static [u8]) -> Datum {
    Datum::Bytes(bytes::Bytes::from_static(bytes))
}

const DAY: i64 = 86_400_000_000;

/// Types that may be keys, with values in ascending order.
fn key_types() -> Vec<(ColumnType, Vec<Case>)> {
    vec![
        (
            ColumnType::Text { max_chars: None },
            vec![
                (text(""), ""),
                (text("A"), "A"),
                (text("a"), "a"),
                (text("a'b\"c\\d\n\te"), "a'b\"c\\d\n\te"),
                (text("é"), "é"),
                (text("\u{ffff}"), "\u{ffff}"),
                (text("\u{10ffff}"), "\u{10ffff}"),
            ],
        ),
        (ColumnType::Text { max_chars: Some(3) }, vec![(text("   "), "   "), (text("äöü"), "äöü")]),
        (ColumnType::Boolean, vec![(Datum::Bool(false), "0"), (Datum::Bool(true), "1")]),
        (ColumnType::SmallInt, vec![(Datum::Int(-32_768), "-32768"), (Datum::Int(32_767), "32767")]),
        (
            ColumnType::Integer,
            vec![(Datum::Int(-2_147_483_648), "-2147483648"), (Datum::Int(2_147_483_647), "2147483647")],
        ),
        (
            ColumnType::BigInt,
            vec![
                (Datum::Int(i64::MIN), "-9223372036854775808"),
                (Datum::Int(0), "0"),
                (Datum::Int(9_007_199_254_740_993), "9007199254740993"),
                (Datum::Int(i64::MAX), "9223372036854775807"),
            ],
        ),
        (
            ColumnType::Numeric { precision_scale: None },
            vec![
                (numeric("-0.00000000000000000001"), "-0.00000000000000000001"),
                (numeric("0"), "0"),
                (numeric("1.50"), "1.5"),
                (numeric("18446744073709551615.000000001"), "18446744073709551615.000000001"),
                (numeric("1e30"), "1000000000000000000000000000000"),
            ],
        ),
        (
            ColumnType::Numeric { precision_scale: Some((10, 2)) },
            vec![
                (numeric("-99999999.99"), "-99999999.99"),
                (numeric("7"), "7.00"),
                (numeric("99999999.99"), "99999999.99"),
            ],
        ),
        (
            ColumnType::Date,
            vec![
                (Datum::Date(-719_162), "0001-01-01"),
                (Datum::Date(0), "1970-01-01"),
                (Datum::Date(20_574), "2026-05-01"),
                (Datum::Date(2_932_896), "9999-12-31"),
            ],
        ),
        (
            ColumnType::Time,
            vec![
                (Datum::Time(0), "00:00:00"),
                (Datum::Time(1_500_000), "00:00:01.5"),
                (Datum::Time(DAY - 1), "23:59:59.999999"),
            ],
        ),
        (
            ColumnType::Timestamp,
            vec![
                (Datum::Timestamp(-719_162 * DAY), "0001-01-01T00:00:00"),
                (Datum::Timestamp(-1), "1969-12-31T23:59:59.999999"),
                (Datum::Timestamp(2_932_897 * DAY - 1), "9999-12-31T23:59:59.999999"),
            ],
        ),
        (
            ColumnType::TimestampTz,
            vec![
                (Datum::TimestampTz(-719_162 * DAY), "-62135596800000000"),
                (Datum::TimestampTz(-1), "-1"),
                (Datum::TimestampTz(1_700_000_000_123_456), "1700000000123456"),
                (Datum::TimestampTz(2_932_897 * DAY - 1), "253402300799999999"),
            ],
        ),
        (
            ColumnType::Uuid,
            vec![
                (Datum::Uuid([0; 16]), "00000000-0000-0000-0000-000000000000"),
                (Datum::Uuid([0xab; 16]), "abababab-abab-abab-abab-abababababab"),
            ],
        ),
        (ColumnType::Bytes, vec![(bytes(b""), ""), (bytes(b"\x00\xff'"), "00ff27"), (bytes(b"a"), "61")]),
    ]
}

fn other_types() -> Vec<(ColumnType, Vec<Case>)> {
    vec![
        (
            ColumnType::Real,
            vec![(Datum::Double(-1.5), "-1.5"), (Datum::Double(f64::from(f32::MAX)), "3.4028235e38")],
        ),
        (
            ColumnType::Double,
            vec![
                (Datum::Double(f64::MIN), "-1.7976931348623157e308"),
                (Datum::Double(5e-324), "5e-324"),
                (Datum::Double(0.1), "0.1"),
                (Datum::Double(1.0), "1"),
            ],
        ),
        (
            ColumnType::Json,
            vec![
                (Datum::Json("null".into()), "null"),
                (Datum::Json("[1, \"a\", true]".into()), "[1, \"a\", true]"),
                (Datum::Json("{\"a\": 12345678901234567890.5}".into()), "{\"a\": 12345678901234567890.5}"),
            ],
        ),
    ]
}

/// Whether a column holds what was written.
fn is_same(kind: &ColumnType, stored: &str, expected: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    match kind {
        ColumnType::Double => number(stored) == number(expected),
        ColumnType::Real => stored.parse::<f32>().ok() == expected.parse::<f32>().ok(),
        _ => stored == expected,
    }
}

pub(crate) async fn every_type_is_kept_at_the_ends_of_its_range(harness: &dyn Harness) {
    let types: Vec<_> = key_types().into_iter().chain(other_types()).collect();
    let mut columns = vec![required("id", ColumnType::BigInt)];
    let named =
        |(index, (kind, _)): (usize, &(ColumnType, Vec<Case>))| column(&format!("c{index}"), kind.clone());
    columns.extend(types.iter().enumerate().map(named));
    let mut scene = Scene::of_tables(harness, vec![table("wide", Ownership::OwnedByKey, columns)]).await;
    // Row n holds the n-th value of each column, NULL where it has none.
    let most = types.iter().map(|(_, cases)| cases.len()).max().unwrap();
    let change = |index: usize| {
        let values = types.iter().enumerate().map(|(column, (_, cases))| {
            set(column + 1, cases.get(index).map_or(Datum::Null, |(datum, _)| datum.clone()))
        });
        item(i64::try_from(index).unwrap(), Change::upsert(values.collect()))
    };
    // Made, and written over what is there.
    for _ in 0..2 {
        scene.accept((0..most).map(change).collect()).await;
        let shown = types
            .iter()
            .enumerate()
            .map(|(index, (kind, _))| harness.shared_form(&format!("c{index}"), kind));
        let sql = format!("select {} from wide__v1 order by id", shown.collect::<Vec<_>>().join(", "));
        for (index, row) in scene.rows(&sql).await.into_iter().enumerate() {
            for ((kind, cases), stored) in types.iter().zip(row) {
                let expected = cases.get(index).map_or("NULL", |(_, text)| text);
                assert!(is_same(kind, &stored, expected), "{kind}: {stored} instead of {expected}");
            }
        }
    }
}

pub(crate) async fn every_type_of_key_finds_its_row_again(harness: &dyn Harness) {
    let types = key_types();
    let keyed = |(index, (kind, _)): (usize, &(ColumnType, Vec<Case>))| {
        let columns: Vec<Column> = vec![
            column("n", ColumnType::BigInt),
            required("k1", kind.clone()),
            required("k2", ColumnType::Integer),
        ];
        Table {
            primary_key: vec![ColumnId(1), ColumnId(2)],
            ..table(&format!("t{index}"), Ownership::OwnedStored, columns)
        }
    };
    let scene = Scene::of_tables(harness, types.iter().enumerate().map(keyed).collect()).await;
    let of = |index: usize, datum: &Datum, change: Change| RowChange {
        table: TableId(index),
        key: Box::new([datum.clone(), Datum::Int(7)]),
        aggregate: Some(text("a")),
        change,
    };
    let every = |change: &dyn Fn() -> Change| -> Vec<RowChange> {
        let rows = types
            .iter()
            .enumerate()
            .flat_map(|(index, (_, cases))| cases.iter().map(move |case| (index, case)));
        rows.map(|(index, (datum, _))| of(index, datum, change())).collect()
    };
    let mut fence = scene.fence;
    let upsert = || Change::upsert(vec![super::add(0, 1)]);
    for changes in [every(&upsert), every(&upsert)] {
        let step = advance(0, fence, fence.position.get() + 1);
        assert_eq!(
            scene.transact(&[changes], &[], std::slice::from_ref(&step)).await,
            Ok(Applied::Committed { missed_updates: 0 })
        );
        fence = fence.advanced_to(step.to);
    }
    let count =
        async |index: usize| scene.rows(&format!("select count(*), min(n), max(n) from t{index}__v1")).await;
    for (index, (kind, cases)) in types.iter().enumerate() {
        assert_eq!(count(index).await, [[&*cases.len().to_string(), "2", "2"]], "{kind}");
    }
    let step = advance(0, fence, fence.position.get() + 1);
    assert_eq!(
        scene.transact(&[every(&Change::delete)], &[], &[step]).await,
        Ok(Applied::Committed { missed_updates: 0 })
    );
    for (index, (kind, _)) in types.iter().enumerate() {
        assert_eq!(count(index).await, [["0", "NULL", "NULL"]], "{kind}");
    }
}
