use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::position::RecordOffset;
use crate::projection::change::Effect;
use crate::projection::{
    ColumnId, Datum, Operation as Change, Ownership, TableId, TypeRule, ViewBody, Wanted,
};
use crate::record::{Header, Record, RecordCoordinates, RecordTimestamp, TopicPartition};

const SHOP: &str = r#"
projection: product_catalogue
version: 1
sources:
  - topic: shop.products
    format: avro
    type: headers["event-type"]
    tombstone: [{ delete: products, key: { product_id: key } }]
  - { topic: shop.stock, format: json, type: value.kind }
tables:
  products:
    primary_key: [product_id]
    columns:
      product_id: text
      name: text not null
      price_cents: bigint
      listed_at: timestamptz
      search: tsvector generated always as (to_tsvector('simple', name)) stored
    indexes: [[name], { columns: [search], using: gin }]
  stock:
    shared: true
    primary_key: [sku, warehouse]
    columns: { sku: text, warehouse: text, quantity: bigint not null default 0 }
views:
  product_search:
    sql: |
      select p.*, coalesce(s.quantity, 0) as stock from {products} p
      left join (select sku, sum(quantity) as quantity from {stock} group by sku) s on s.sku = p.product_id
  stock: none
events:
  ProductListed:
    - upsert: products
      key: { product_id: key }
      set: { name: value.name, price_cents: value.price.cents, listed_at: value.at }
  shop.stock/StockMoved:
    - upsert: stock
      key: { sku: value.sku, warehouse: value.warehouse }
      add: { quantity: value.delta }
      when: value.delta != 0
  ProductDelisted:
    - { delete: products, key: { product_id: key } }
unknown_events: ignore
on_error: dead_letter
staleness: 2m
"#;

fn read(text: &str) -> Result<YamlProjection, Vec<Mistake>> {
    parse(Path::new("shop.yaml"), text, |path| {
        if path == Path::new("product.avsc") {
            Ok(r#"{"type": "record", "name": "Product", "fields": []}"#.to_owned())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    })
}

fn shop() -> YamlProjection {
    read(SHOP).unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)))
}

fn lines(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The mistakes of the sample with `from` replaced.
fn mistakes(from: &str, to: &str) -> String {
    assert!(SHOP.contains(from), "the sample has no {from:?}");
    lines(&read(&SHOP.replacen(from, to, 1)).expect_err("a mistake"))
}

fn warnings(from: &str, to: &str) -> String {
    assert!(SHOP.contains(from), "the sample has no {from:?}");
    let projection =
        read(&SHOP.replacen(from, to, 1)).unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)));
    projection.warnings().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn record(topic: &str) -> Record {
    Record {
        coordinates: RecordCoordinates {
            topic_partition: TopicPartition::new(topic, 0),
            offset: RecordOffset::new(7),
        },
        leader_epoch: None,
        timestamp: RecordTimestamp::Absent,
        key: Some(Bytes::from_static(b"p1")),
        value: None,
        headers: vec![Header {
            name: "event-type".into(),
            value: Some(Bytes::from_static(b"ProductListed")),
        }],
    }
}

fn fields(list: &[(&str, Value)]) -> Value {
    Value::Record(list.iter().map(|(name, value)| ((*name).into(), value.clone())).collect())
}

fn map(
    projection: &YamlProjection,
    source: usize,
    event_type: Option<&str>,
    value: Option<&Value>,
) -> Result<(Mapped, Vec<EventChange>), RecordFault> {
    let record = record(&projection.declaration.sources[source].topic);
    let key = Value::from("p1");
    let event = Event { source, record: &record, event_type, key: Some(&key), value };
    let mut changes = Changes::new();
    let mapped = projection.map(&event, &mut changes);
    if mapped.is_err() {
        assert!(changes.as_slice().is_empty(), "a fault leaves no change behind");
    }
    Ok((mapped?, changes.take().collect()))
}

fn set(column: usize, value: impl Into<Value>) -> Assignment {
    Assignment { column: ColumnId(column), effect: Effect::Set, value: value.into() }
}

#[test]
fn the_sample_declares_everything_that_other_parts_need() {
    let declaration = shop().declaration;
    assert_eq!(declaration.label(), "product_catalogue@1");
    assert_eq!(declaration.staleness, Duration::from_mins(2));
    let [products, stock] = &declaration.sources[..] else { panic!("two sources") };
    assert_eq!(products.event_type, TypeRule::Header("event-type".into()));
    assert!(products.reads_key && !stock.reads_key);
    let Wanted::Fields(fields) = &products.wanted else { panic!("fields") };
    assert_eq!(fields.0.keys().collect::<Vec<_>>(), ["at", "name", "price"]);
    assert_eq!(fields.0["price"].0.keys().collect::<Vec<_>>(), ["cents"]);
    let Wanted::Fields(fields) = &stock.wanted else { panic!("fields") };
    assert_eq!(fields.0.keys().collect::<Vec<_>>(), ["delta", "kind", "sku", "warehouse"]);
    assert_eq!(declaration.tables[0].ownership, Ownership::OwnedByKey);
    assert_eq!(declaration.tables[1].ownership, Ownership::Shared);
    assert_eq!(declaration.tables[1].columns[2].default, Some(Datum::Int(0)));
    let views: Vec<_> = declaration.views.iter().map(|view| view.name.as_str()).collect();
    assert_eq!(views, ["products", "product_search"]);
    assert_eq!(declaration.views[0].body, ViewBody::Table(TableId(0)));
}

#[test]
fn an_event_becomes_the_changes_of_its_handler() {
    let value = fields(&[
        ("name", "Lamp".into()),
        ("price", fields(&[("cents", 900.into())])),
        ("at", Value::TimestampTz(1)),
    ]);
    let (mapped, changes) = map(&shop(), 0, Some("ProductListed"), Some(&value)).expect("mapped");
    assert_eq!(mapped, Mapped::Handled);
    assert_eq!(
        changes,
        [EventChange {
            table: TableId(0),
            key: vec!["p1".into()],
            aggregate: None,
            operation: Change::Upsert(vec![set(1, "Lamp"), set(2, 900), set(3, Value::TimestampTz(1))]),
            conditions: Conditions::default(),
        }]
    );
}

/// B38, the mapping part: absent keeps the column, null clears it, and records of different shape do not share a list.
#[test]
fn an_absent_field_keeps_its_column_and_a_null_clears_it() {
    let people = "
projection: people
version: 1
sources: [{ topic: people, format: json, aggregate: value.id }]
tables: { people: { primary_key: [id], columns: { id: bigint, name: text, phone: text } } }
events: { people: [{ upsert: people, key: { id: value.id }, set: { name: value.name, phone: value.phone } }] }
";
    let projection = read(people).unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)));
    let assigned = |value: &[(&str, Value)]| {
        let (_, changes) = map(&projection, 0, Some("people"), Some(&fields(value))).expect("mapped");
        (changes[0].key[0].clone(), changes[0].operation.clone())
    };
    assert_eq!(
        assigned(&[("id", 1.into()), ("phone", Value::Null)]),
        (Value::Int(1), Change::Upsert(vec![set(2, Value::Null)]))
    );
    assert_eq!(
        assigned(&[("id", 2.into()), ("name", "Bea".into())]),
        (Value::Int(2), Change::Upsert(vec![set(1, "Bea")]))
    );
    assert_eq!(assigned(&[("id", 3.into())]), (Value::Int(3), Change::Upsert(vec![])));
}

#[test]
fn when_decides_and_a_shared_table_is_added_to() {
    let moved = |delta: i64| {
        fields(&[
            ("kind", "StockMoved".into()),
            ("sku", "p1".into()),
            ("warehouse", "w".into()),
            ("delta", delta.into()),
        ])
    };
    let (mapped, changes) = map(&shop(), 1, Some("StockMoved"), Some(&moved(0))).expect("mapped");
    assert_eq!((mapped, changes.len()), (Mapped::Handled, 0));
    let (_, changes) = map(&shop(), 1, Some("StockMoved"), Some(&moved(-2))).expect("mapped");
    let add = Assignment { column: ColumnId(2), effect: Effect::Add, value: Value::Int(-2) };
    assert_eq!(changes[0].operation, Change::Upsert(vec![add]));
    assert_eq!(changes[0].key, vec![Value::from("p1"), Value::from("w")]);
}

#[test]
fn tombstones_delete_where_declared_and_are_passed_by_elsewhere() {
    let (mapped, changes) = map(&shop(), 0, None, None).expect("mapped");
    assert_eq!((mapped, &changes[0].operation), (Mapped::Handled, &Change::Delete));
    assert_eq!(map(&shop(), 1, None, None).expect("mapped"), (Mapped::Ignored, vec![]));
}

#[test]
fn a_handler_of_one_topic_does_not_take_the_type_of_another() {
    assert_eq!(map(&shop(), 0, Some("StockMoved"), Some(&Value::Null)).expect("mapped").0, Mapped::Ignored);
    // `products` belongs to shop.products, by its tombstone: so do the handlers that write to it.
    assert_eq!(
        map(&shop(), 1, Some("ProductListed"), Some(&Value::Null)).expect("mapped").0,
        Mapped::Ignored
    );
}

#[test]
fn unknown_events_are_ignored_or_dead_letters_but_for_those_named() {
    let strict = SHOP.replace("unknown_events: ignore", "unknown_events: dead_letter\nignore: [Viewed]");
    let strict = read(&strict).unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)));
    assert_eq!(map(&strict, 0, Some("Viewed"), Some(&Value::Null)).expect("mapped").0, Mapped::Ignored);
    let fault = map(&strict, 0, Some("Bought"), Some(&Value::Null)).expect_err("unknown");
    assert_eq!(fault.to_string(), "unknown_event at map: no handler for events of the type `Bought`");
}

#[test]
fn a_fault_names_reason_column_and_place_and_quotes_no_value() {
    let secret =
        fields(&[("kind", "StockMoved".into()), ("delta", "secret".into()), ("sku", "secret".into())]);
    let fault = map(&shop(), 1, Some("StockMoved"), Some(&secret)).expect_err("no warehouse");
    assert_eq!(
        fault.to_string(),
        "missing_field at map: stock.warehouse: a column of the key is absent: `value.warehouse` (line 37, column 41 of the projection)"
    );
    assert_eq!(fault.column.as_deref(), Some("stock.warehouse"));
    let sum = SHOP.replace("quantity: value.delta }", "quantity: value.delta + 1 }");
    let secret = fields(&[("sku", "secret".into()), ("warehouse", "w".into()), ("delta", "secret".into())]);
    let fault = map(&read(&sum).expect("valid"), 1, Some("StockMoved"), Some(&secret)).expect_err("text");
    assert_eq!(fault.reason, Reason::ExpressionFailed);
    assert!(!fault.to_string().contains("secret"), "{fault}");
}

#[test]
fn a_table_with_another_key_stores_the_aggregate_as_text() {
    let lines = SHOP
        .replace("key: { product_id: key }", "key: { product_id: value.id }")
        .replace("tombstone: [{ delete: products, key: { product_id: value.id } }]", "aggregate: value.owner")
        .replace("  ProductListed:", "  shop.products/ProductListed:");
    let projection = read(&lines).unwrap_or_else(|mistakes| panic!("{}", self::lines(&mistakes)));
    assert_eq!(projection.declaration.tables[0].ownership, Ownership::OwnedStored);
    let Wanted::Fields(wanted) = &projection.declaration.sources[0].wanted else { panic!("fields") };
    assert!(wanted.0.contains_key("owner"), "the aggregate is decoded");
    let value =
        fields(&[("id", "x".into()), ("name", "Lamp".into()), ("owner", Value::Number("5.0".into()))]);
    let (_, changes) = map(&projection, 0, Some("ProductListed"), Some(&value)).expect("mapped");
    assert_eq!(changes[0].aggregate, Some(Value::from("5")));
    let fault =
        map(&projection, 0, Some("ProductListed"), Some(&fields(&[("id", "x".into())]))).expect_err("absent");
    assert_eq!(fault.reason, Reason::MissingField);
}

#[test]
fn the_digest_covers_content_and_nothing_else() {
    let digest =
        |text: &str| read(text).unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes))).declaration.digest;
    let original = digest(SHOP);
    assert_eq!(original.len(), 64);
    for (from, to) in [
        ("unknown_events", "# a comment\nunknown_events"),
        ("indexes: [[name], { columns: [search], using: gin }]", "indexes: []"),
        ("  stock: none\n", ""),
        ("staleness: 2m", "staleness: 5m"),
        ("on_error: dead_letter", "on_error: quarantine"),
        ("version: 1", "version: 2"),
        ("headers[\"event-type\"]", "'headers[\"event-type\"]'"),
        (
            "set: { name: value.name, price_cents: value.price.cents",
            "set: { price_cents: value.price.cents, name: value.name",
        ),
        ("name: value.name,", "name: 'value[\"name\"]',"),
        ("price_cents: bigint", "price_cents: BIGINT"),
    ] {
        assert!(SHOP.contains(from), "{from}");
        assert_eq!(digest(&SHOP.replacen(from, to, 1)), original, "{from} -> {to}");
    }
    for (from, to) in [
        ("price_cents: bigint", "price_cents: integer"),
        ("price_cents: bigint", "price_cents: bigint default 0"),
        ("value.price.cents", "value.price"),
        ("when: value.delta != 0", "when: value.delta > 0"),
        ("type: value.kind", "type: value.type"),
        ("format: avro", "format: json"),
        ("format: json", "start: latest, format: json"),
        ("unknown_events: ignore", "unknown_events: dead_letter"),
        ("ProductDelisted", "ProductRemoved"),
        (
            "add: { quantity",
            "add: { quantity: value.delta }\n    - upsert: stock\n      key: { sku: value.sku, warehouse: value.warehouse }\n      add: { quantity",
        ),
    ] {
        assert!(SHOP.contains(from), "{from}");
        assert_ne!(digest(&SHOP.replacen(from, to, 1)), original, "{from} -> {to}");
    }
}

#[test]
fn the_digest_is_the_same_from_release_to_release() {
    assert_eq!(shop().declaration.digest, "41e3f782f23fa1c636770d72499400f14d6e8d3fd482131b6ce017774be1e1f5");
}

#[test]
fn unframed_avro_has_its_schemas_in_the_digest() {
    let plain = "format: avro\n    framing: none\n    schemas: [product.avsc]";
    let projection = read(&SHOP.replacen("format: avro", plain, 1))
        .unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)));
    assert_ne!(projection.declaration.digest, shop().declaration.digest);
    assert_eq!(
        mistakes("format: avro", "format: avro\n    framing: none\n    schemas: [missing.avsc]"),
        "shop.yaml:8:15: the schema `missing.avsc` cannot be read: entity not found\n    fix: paths are relative to the projection's file"
    );
}

#[test]
fn every_mistake_of_a_file_is_found_at_once() {
    let text = r"
projection: Shop
version: 0
sources:
  - { topic: shop.orders, format: xml, start: earlyest }
tables:
  orders:
    primary_key: [order]
    columns: { order_id: text, total: bigint not null primary key, note: jsn }
evnts: {}
events:
  OrderPlaced:
    - upsert: order
      key: { order_id: key }
    - upsert: orders
      key: { order_id: key, total: value.total }
      set: { totl: value.total, note: paid }
      if_newer: { total: value.total }
on_error: park
";
    insta::assert_snapshot!(lines(&read(text).expect_err("mistakes")), @r#"
    shop.yaml:2:13: `Shop` is no name of a projection
        fix: begin with a lower-case letter and use lower-case letters, digits and `_`, at most 63
    shop.yaml:3:10: `0` is no version
        fix: write a whole number from 1
    shop.yaml:5:35: `format: xml` is not known
        fix: use one of avro, json
    shop.yaml:5:47: `start: earlyest` is not known
        fix: did you mean `earliest`?
    shop.yaml:8:19: the key column `order` is not among the columns
        fix: did you mean `order_id`?
    shop.yaml:9:39: column `total`: `primary` is not used in a column
        fix: name the key in primary_key: [column]
    shop.yaml:9:74: column `note`: there is no type `jsn`
        fix: did you mean `json`? a type of your own stands in quotes: '"jsn"'
    shop.yaml:10:1: unknown key `evnts` in a projection file
        fix: did you mean `events`?
    shop.yaml:13:15: there is no table `order`
        fix: did you mean `orders`?
    shop.yaml:17:14: table `orders` has no column `totl`
        fix: did you mean `total`?
    shop.yaml:17:39: `paid` is not a variable
        fix: for the text write "'paid'" or {text: paid}; variables are key, value, headers, topic, partition, offset, timestamp
    shop.yaml:19:11: `on_error: park` is not in this release
        fix: write dead_letter, or quarantine to stop the partition
    "#);
}

#[test]
fn what_a_later_release_has_is_refused_and_named() {
    for (from, to, said) in [
        (
            "format: avro",
            "format: avro\n    sequence: value.version",
            "`sequence` in a source is not in this release",
        ),
        ("format: avro", "format: protobuf", "`format: protobuf` is not in this release"),
        ("format: avro", "format: avro\n    key: avro", "`key: avro` is not in this release"),
        (
            "format: avro",
            "format: avro\n    reader_schema: x.avsc",
            "`reader_schema` in a source is not in this release",
        ),
        (
            "format: avro",
            "format: avro\n    envelope: debezium",
            "`envelope` in a source is not in this release",
        ),
        (
            "format: avro",
            "format: avro\n    start: { timestamp: 2030-01-01 }",
            "`start` by timestamp, group or offsets is not in this release",
        ),
        (
            "format: avro",
            "format: avro\n    schemas: [x.avsc]",
            "schemas from files with `framing: confluent` are not in this release",
        ),
        (
            "shared: true",
            "shared: true\n    existing: { table: stock }",
            "`existing` in a table is not in this release",
        ),
        ("when: value.delta != 0", "children: lines", "`children` in an operation is not in this release"),
        ("when: value.delta != 0", "late: skip", "`late` in an operation is not in this release"),
        ("on_error: dead_letter", "on_error: park", "`on_error: park` is not in this release"),
    ] {
        let text = mistakes(from, to);
        assert!(text.contains(said) && text.contains("\n    fix: "), "{to}: {text}");
    }
}

#[test]
fn operations_are_checked_against_their_table() {
    insta::assert_snapshot!(mistakes("price_cents: value.price.cents", "price_cents: \"'9'\""), @r"
    shop.yaml:34:32: text never fits the column `price_cents` of type bigint
        fix: write a literal of the column's type, or another type
    ");
    insta::assert_snapshot!(mistakes("key: { sku: value.sku, warehouse: value.warehouse }", "key: { sku: value.sku }"), @r"
    shop.yaml:37:12: the key lacks the column `warehouse`
        fix: write key: { sku: …, warehouse: … }
    ");
    insta::assert_snapshot!(mistakes("set: { name: value.name,", "set: { product_id: value.id, search: value.name, name: value.name,"), @r"
    shop.yaml:34:14: the column `product_id` is part of the key
        fix: remove it: key sets it
    shop.yaml:34:36: the column `search` is generated by the database
        fix: remove it
    ");
    insta::assert_snapshot!(mistakes("set: { name: value.name,", "add: { name: 1 }\n      set: {"), @r"
    shop.yaml:34:14: `add` to the column `name` of type text
        fix: add needs smallint, integer, bigint or numeric, whose sums are exact
    ");
    insta::assert_snapshot!(mistakes("add: { quantity: value.delta }", "set: { quantity: value.delta }"), @r"
    shop.yaml:38:12: table `stock` is shared: `set` does not commute
        fix: use add, subtract, max or min; or say which value is the newest: if_newer: { column: value.field }; or give the value a table of its own, written from one topic
    ");
    insta::assert_snapshot!(mistakes("- { delete: products, key: { product_id: key } }", "- { delete: stock, key: { sku: key, warehouse: value.w } }"), @r"
    shop.yaml:41:7: table `stock` is shared: rows cannot be deleted, since a delete does not commute
        fix: subtract what was added, or leave such rows out in a view
    ");
    insta::assert_snapshot!(mistakes("set: { name: value.name, price_cents: value.price.cents,", "add: { price_cents: 1 }\n      set: { price_cents: 1,"), @r"
    shop.yaml:34:14: the column `price_cents` stands under `set` and under `add`
        fix: keep one of the two
    ");
    insta::assert_snapshot!(mistakes("tombstone: [{ delete: products, key: { product_id: key } }]", "tombstone: [{ delete: products, key: { product_id: value.id } }]"), @r"
    shop.yaml:8:56: a tombstone has no value
        fix: map from key, headers or timestamp
    ");
}

#[test]
fn keys_and_names_are_checked() {
    insta::assert_snapshot!(mistakes("product_id: text", "product_id: json"), @r"
    shop.yaml:12:19: the key column `product_id` has type json, whose equality differs between stores
        fix: use text, an integer, numeric, boolean, uuid, date, time or bytes
    ");
    insta::assert_snapshot!(mistakes("price_cents: bigint", "price_cents: bigint\n      projector_x: text"), @r"
    shop.yaml:17:7: the column name `projector_x` begins with `projector_`, as the program's own do
        fix: use another name
    ");
    insta::assert_snapshot!(mistakes("price_cents: bigint", "price_cents: bigint\n      name: text"), @r"
    shop.yaml:17:7: the key `name` stands twice, first in line 15
        fix: remove one of the two, or put what stands under both under one
    ");
    insta::assert_snapshot!(mistakes("  stock:\n    shared", &format!("  {}:\n    shared", "s".repeat(60))), @r"
    shop.yaml:20:3: the table is stored as `ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss__v1`, which is longer than 63 bytes
        fix: use a shorter name
    shop.yaml:27:7: `{stock}` in the SQL of view `product_search` is no table of this projection
        fix: use one of products, ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss
    shop.yaml:29:3: there is no table `stock` whose view could be removed
        fix: use one of products, ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss
    shop.yaml:36:15: there is no table `stock`
        fix: use one of products, ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss
    ");
    insta::assert_snapshot!(mistakes("from {products} p", "from {product} p"), @r"
    shop.yaml:27:7: `{product}` in the SQL of view `product_search` is no table of this projection
        fix: did you mean `products`?
    ");
    insta::assert_snapshot!(mistakes("indexes: [[name]", "indexes: [[nam]"), @r"
    shop.yaml:19:16: table `products` has no column `nam`
        fix: did you mean `name`?
    ");
    insta::assert_snapshot!(mistakes("staleness: 2m", "staleness: 2"), @r"
    shop.yaml:44:12: `2` is no duration
        fix: write a number with its unit: 30s, 2m or 1h30m
    ");
    insta::assert_snapshot!(mistakes("- { topic: shop.stock,", "- { topic: shop.products,"), @r"
    shop.yaml:9:5: the topic `shop.products` stands twice in sources
        fix: keep one entry for each topic
    ");
}

#[test]
fn an_owned_table_is_written_from_one_topic() {
    insta::assert_snapshot!(mistakes("  ProductDelisted:", "  shop.stock/ProductDelisted:"), @r"
    shop.yaml:41:7: table `products` is written from the topics shop.products and shop.stock, whose order is not known
        fix: write shared: true in `products` and operations that commute, or one table for each topic and a view that joins them
    ");
    insta::assert_snapshot!(mistakes("    tombstone: [{ delete: products, key: { product_id: key } }]\n", ""), @r"
    shop.yaml:31:7: table `products` could be written from the topics shop.products and shop.stock
        fix: name the topic in the handler, such as shop.products/Type; or write shared: true in `products`
    ");
}

#[test]
fn a_column_that_must_have_a_value_gets_one() {
    insta::assert_snapshot!(mistakes("set: { name: value.name,", "set: {"), @r"
    shop.yaml:15:7: `products.name` is not null and has no default, and no upsert sets it
        fix: set it, give it a default, or drop `not null`
    ");
    let second = "ProductRenamed: [{ upsert: products, key: { product_id: key }, set: { price_cents: 1 } }]\n  ProductDelisted:";
    insta::assert_snapshot!(warnings("ProductDelisted:", second), @"shop.yaml:40:20: warning: this upsert does not set `products.name`, which is not null and has no default: where the row is not there yet, the event becomes a dead letter");
}

#[test]
fn what_may_surprise_is_a_warning() {
    insta::assert_snapshot!(warnings("indexes: [[name],", "indexes: [{ columns: [name], unique: true },"), @"shop.yaml:19:15: warning: a unique index beside the key may refuse a row depending on what is stored at that moment, and so on how batches are cut; such a record becomes a dead letter");
    insta::assert_snapshot!(warnings("format: json, type: value.kind", "format: json"), @"shop.yaml:35:3: warning: no source can have events of the type `StockMoved`: without `type`, the type of JSON events is the topic");
}

#[test]
fn a_mistake_of_shape_is_told_once_and_with_its_fix() {
    let shape = |tables: &str| {
        let text = format!(
            "projection: a\nversion: 1\nsources: [{{ topic: t, format: json, type: value.kind }}]\ntables:\n{tables}\
             events: {{ Paid: [{{ upsert: sums, key: {{ id: key }}, set: {{ cents: value.cents }} }}] }}\n"
        );
        lines(&read(&text).expect_err("a mistake"))
    };
    let list = "  sums:\n    primary_key: [id]\n    columns:\n      - id: text\n      - cents: bigint\n    indexes: [[cents]]\n";
    insta::assert_snapshot!(shape(list), @r"
    shop.yaml:8:7: columns must be a mapping, not a list
        fix: write columns: { name: type, … }
    ");
    insta::assert_snapshot!(shape("  - sums: { primary_key: [id] }\n"), @r"
    shop.yaml:5:3: tables must be a mapping, not a list
        fix: write one `key: value` a line, without `- ` in front
    ");
    let key = "  sums:\n    primary_key: id\n    columns: { id: text, cents: bigint }\n";
    insta::assert_snapshot!(shape(key), @r"
    shop.yaml:6:18: primary_key must be a list, not a single value
        fix: write [id]
    ");
    let cut = "  sums:\n    primary_key: [id]\n    columns: { id: text, cents: numeric(10, 2) not null default 0 }\n";
    insta::assert_snapshot!(shape(cut), @r"
    shop.yaml:7:33: column `cents`: `numeric(10` is cut at the comma
        fix: between `{` and `}` quote it: 'numeric(…, …)'; or write one column a line
    ");
}

#[test]
fn one_handler_takes_two_types_alike() {
    let text = SHOP.replace("  ProductListed:", "  ProductListed | ProductChanged:");
    let projection = read(&text).unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)));
    let value = fields(&[("name", "Lamp".into())]);
    for event_type in ["ProductListed", "ProductChanged"] {
        assert_eq!(map(&projection, 0, Some(event_type), Some(&value)).expect("mapped").1.len(), 1);
    }
    insta::assert_snapshot!(mistakes("  ProductDelisted:", "  ProductListed | ProductDelisted:"), @r"
    shop.yaml:40:3: the type `ProductListed` is handled twice, first in line 31
        fix: put all operations of a type under one key
    ");
}

#[test]
fn no_text_makes_the_reader_panic() {
    for end in 0..SHOP.len() {
        if SHOP.is_char_boundary(end) {
            let _ = read(&SHOP[..end]);
        }
    }
    for text in [
        "",
        "[]",
        "a",
        "projection: {}\nversion: []\nsources: a\ntables: []\nviews: a\nevents: []\n",
        "sources: [{}]\ntables: {t: }\nevents: {E: {}}",
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn the_samples_are_valid_and_have_no_warnings() {
    for file in [
        "examples/product_search/product_search.v1.yaml",
        "examples/account_balances/account_balances.v1.yaml",
        "examples/demo/product_catalogue.v1.yaml",
        "examples/reference/orders.v1.yaml",
        "deploy/k8s/product_catalogue.v1.yaml",
    ] {
        let projection = load(Path::new(file)).unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)));
        assert_eq!(
            projection.warnings().iter().map(ToString::to_string).collect::<Vec<_>>(),
            Vec::<String>::new()
        );
    }
}

#[test]
fn a_projection_is_described_in_a_few_lines() {
    insta::assert_snapshot!(crate::projection::describe(&shop().declaration), @r"
    projection product_catalogue@1
      reads shop.products: Avro, schemas from the registry; type by the header event-type; key text; 3 field(s) decoded; from earliest
      reads shop.stock: JSON; type by value.kind; key not read; 4 field(s) decoded; from earliest
      writes products__v1 (5 columns, key product_id): owned by the aggregate in its key
      writes stock__v1 (3 columns, key sku, warehouse): shared
      shows products: the rows of products
      shows product_search: its own SQL
    ");
}

#[test]
fn a_file_that_is_not_there_is_a_mistake_with_its_name() {
    let mistakes = load(Path::new("nowhere.yaml")).expect_err("no such file");
    assert!(mistakes[0].to_string().starts_with("nowhere.yaml:1:1: the file cannot be read: "));
}

mod operations;
