//! Values of every type, exactly; names of every kind.

use super::*;
use crate::projection::{ColumnId, Index};

#[tokio::test]
async fn every_portable_type_keeps_its_values() {
    let place = Place::new().await;
    let numeric = ColumnType::Numeric { precision_scale: None };
    let kinds: Vec<(ColumnType, Datum, &str)> = vec![
        (ColumnType::Boolean, Datum::Bool(true), "true"),
        (ColumnType::SmallInt, Datum::Int(-32768), "-32768"),
        (ColumnType::Integer, Datum::Int(i64::from(i32::MAX)), "2147483647"),
        (ColumnType::BigInt, Datum::Int(i64::MIN), "-9223372036854775808"),
        (numeric.clone(), Datum::Numeric("-0.0000000001".parse().unwrap()), "-0.0000000001"),
        (numeric, Datum::Numeric("1e30".parse().unwrap()), "1000000000000000000000000000000"),
        (
            ColumnType::Numeric { precision_scale: Some((10, 2)) },
            Datum::Numeric("1.5".parse().unwrap()),
            "1.50",
        ),
        (ColumnType::Real, Datum::Double(0.5), "0.5"),
        (ColumnType::Double, Datum::Double(0.1), "0.1"),
        (TEXT, text("it's \"ä\" \\ 🦀"), "it's \"ä\" \\ 🦀"),
        (ColumnType::Text { max_chars: Some(3) }, text("äöü"), "äöü"),
        (ColumnType::Bytes, Datum::Bytes(bytes::Bytes::from_static(b"\x00\xff")), "\\x00ff"),
        (ColumnType::Uuid, Datum::Uuid([0xde; 16]), "dededede-dede-dede-dede-dededededede"),
        (ColumnType::Date, Datum::Date(-1), "1969-12-31"),
        (ColumnType::Time, Datum::Time(86_399_999_999), "23:59:59.999999"),
        (ColumnType::Timestamp, Datum::Timestamp(-1), "1969-12-31 23:59:59.999999"),
        (ColumnType::TimestampTz, Datum::TimestampTz(1_700_000_000_000_001), "2023-11-14 22:13:20.000001+00"),
        (ColumnType::Json, Datum::Json(r#"{"a": [1.50, null]}"#.into()), r#"{"a": [1.50, null]}"#),
    ];
    let mut columns = vec![not_null(column("id", ColumnType::BigInt))];
    for (index, (kind, default, _)) in kinds.iter().enumerate() {
        columns.push(column(&format!("v{index}"), kind.clone()));
        columns.push(with_default(column(&format!("d{index}"), kind.clone()), default.clone()));
    }
    let declaration = declaration(vec![table("everything", Ownership::OwnedByKey, columns)]);
    let mut writer = place.begin(&declaration).await;
    let values =
        || kinds.iter().enumerate().map(|(index, (_, datum, _))| (1 + index * 2, datum.clone())).collect();
    writer.commit(vec![row(Datum::Int(1), set(values())), row(Datum::Int(2), set(vec![]))]).await;
    let with = |value: &dyn Fn(&str) -> String, id: &str| {
        let pairs = kinds.iter().flat_map(|(_, _, shown)| [value(shown), (*shown).to_owned()]);
        std::iter::once(id.to_owned()).chain(pairs).collect::<Vec<_>>().join("|")
    };
    let expected = [with(&str::to_owned, "1"), with(&|_| "∅".to_owned(), "2")];
    assert_eq!(place.view("everything").await, expected);
    // What the catalogue says of defaults and types is what was declared.
    place.store.register(&registration(&declaration, 2)).await.unwrap();
    place.end().await;
}

#[tokio::test]
async fn every_key_type_finds_its_row_again() {
    let place = Place::new().await;
    let keys = [
        (ColumnType::Boolean, Datum::Bool(false)),
        (ColumnType::Numeric { precision_scale: None }, Datum::Numeric("1.5".parse().unwrap())),
        (ColumnType::Text { max_chars: Some(9) }, text("a ")),
        (ColumnType::Bytes, Datum::Bytes(bytes::Bytes::from_static(b"\x00"))),
        (ColumnType::Uuid, Datum::Uuid([1; 16])),
        (ColumnType::Date, Datum::Date(1)),
        (ColumnType::Time, Datum::Time(1)),
        (ColumnType::Timestamp, Datum::Timestamp(1)),
        (ColumnType::TimestampTz, Datum::TimestampTz(1)),
        (ColumnType::SmallInt, Datum::Int(1)),
    ];
    let mut columns: Vec<Column> = keys
        .iter()
        .enumerate()
        .map(|(index, (kind, _))| not_null(column(&format!("k{index}"), kind.clone())))
        .collect();
    columns.push(not_null(column("required", ColumnType::BigInt)));
    columns.push(column("n", ColumnType::BigInt));
    let mut keyed = table("keyed", Ownership::OwnedByKey, columns);
    keyed.primary_key = (0..keys.len()).map(ColumnId).collect();
    let declaration = declaration(vec![keyed]);
    let mut writer = place.begin(&declaration).await;
    let key: Box<[Datum]> = keys.iter().map(|(_, datum)| datum.clone()).collect();
    let change = |change| vec![RowChange { table: TableId(0), key: key.clone(), aggregate: None, change }];
    let (required, n) = (keys.len(), keys.len() + 1);
    writer.commit(change(set(vec![(required, Datum::Int(1)), (n, Datum::Int(1))]))).await;
    writer.commit(change(add(vec![(required, 1), (n, 1)]))).await;
    writer.commit(change(add(vec![(n, 1)]))).await;
    assert_eq!(place.texts("select required::text, n::text from {s}.keyed").await, ["2|3"]);
    writer.commit(change(Change::delete())).await;
    assert_eq!(place.count("select count(*) from {s}.keyed").await, 0);
    place.end().await;
}

#[tokio::test]
async fn types_of_the_catalogue_are_written_by_cast() {
    let place = Place::new().await;
    place.run("create type {s}.mood as enum ('sad', 'ok')").await;
    let kind = |name: &str| ColumnType::Catalogue(name.to_owned());
    let mood = format!("{}.mood", place.schema);
    let mut documents = table(
        "documents",
        Ownership::OwnedByKey,
        vec![
            not_null(column("id", ColumnType::BigInt)),
            column("body", kind("jsonb")),
            column("address", kind("inet")),
            column("tags", kind("text[]")),
            column("mood", kind(&mood)),
            column("code", kind("char(3)")),
            Column {
                generated: Some("to_tsvector('simple'::regconfig, coalesce(body ->> 'title', ''))".into()),
                ..column("search", kind("tsvector"))
            },
            with_default(column("range", kind("int4range")), Datum::Catalogue("[1,5)".into())),
        ],
    );
    documents.indexes = vec![Index {
        columns: vec!["search".into()],
        expression: None,
        unique: false,
        method: Some("gin".into()),
        condition: None,
    }];
    let declaration = declaration(vec![documents]);
    let mut writer = place.begin(&declaration).await;
    let values = |mood: &str, code: &str| {
        let value = |text: &str| Datum::Catalogue(text.into());
        set(vec![
            (1, value(r#"{"title": "Blue lamp"}"#)),
            (2, value("10.0.0.1")),
            (3, value(r#"["a", "b,c", null]"#)),
            (4, value(mood)),
            (5, value(code)),
        ])
    };
    writer.commit(vec![row(Datum::Int(1), values("ok", "abc"))]).await;
    writer.commit(vec![row(Datum::Int(1), set(vec![(3, Datum::Catalogue("{x,y}".into()))]))]).await;
    assert_eq!(
        place.view("documents").await,
        [r#"1|{"title": "Blue lamp"}|10.0.0.1/32|{x,y}|ok|abc|'blue':1 'lamp':2|[1,5)"#]
    );
    assert_eq!(place.count_indexes("USING gin").await, 1);
    for (change, code) in [(values("meh", "abc"), "22P02"), (values("ok", "abcd"), "22001")] {
        let error = writer.apply(vec![row(Datum::Int(2), change)]).await.unwrap_err();
        assert!(error.to_string().contains(code), "{error}");
    }
    place.store.register(&registration(&declaration, 2)).await.unwrap();
    place.end().await;
}

#[tokio::test]
async fn odd_names_are_written_exactly() {
    let place = Place::named(format!("{} \"x'y", unique("Odd")));
    place.store.lay_out().await.unwrap();
    let mut lines = table(
        "Order Lines",
        Ownership::OwnedStored,
        vec![
            not_null(column("order", TEXT)),
            column("Id", ColumnType::BigInt),
            column("id", ColumnType::BigInt),
            column("a\"b", ColumnType::BigInt),
            with_default(column("select", TEXT), text("it's {s} \\ \"")),
        ],
    );
    lines.indexes = vec![Index {
        columns: vec!["a\"b".into()],
        expression: None,
        unique: true,
        method: None,
        condition: Some("\"Id\" > 0".into()),
    }];
    let mut declaration = declaration(vec![lines]);
    declaration.views.push(View {
        name: "Sum \"of\" all".into(),
        body: ViewBody::Sql("select sum(l.\"a\"\"b\") as s, '{other}' as t from {Order Lines} l;".into()),
    });
    let mut writer = place.begin(&declaration).await;
    let numbers = |a, b, c| set(vec![(1, Datum::Int(a)), (2, Datum::Int(b)), (3, Datum::Int(c))]);
    writer.commit(vec![of("x", row(text("o1"), numbers(1, 2, 3)))]).await;
    writer.commit(vec![of("x", row(text("o1"), add(vec![(3, 4)])))]).await;
    assert_eq!(place.view("Order Lines").await, ["o1|1|2|7|it's {s} \\ \""]);
    assert_eq!(place.view("Sum \"of\" all").await, ["7|{other}"]);
    assert_eq!(
        place.store.register(&registration(&declaration, 2)).await,
        Ok(crate::store::Registered::Known)
    );
    place.store.retire(&key(&declaration)).await.unwrap();
    place.end().await;
}

#[tokio::test]
async fn names_that_postgresql_would_cut_are_refused() {
    let place = Place::new().await;
    for (name, column_name) in [("t".repeat(60), "c".to_owned()), ("t".to_owned(), "c".repeat(64))] {
        let declaration = declaration(vec![table(
            &name,
            Ownership::OwnedByKey,
            vec![not_null(column("id", TEXT)), column(&column_name, TEXT)],
        )]);
        let error = place.store.register(&registration(&declaration, 1)).await.unwrap_err();
        assert!(error.to_string().contains("63"), "{error}");
    }
    place.end().await;
}
