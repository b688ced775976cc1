//! Every operation of a handler: what it becomes, and what is refused.

use super::*;
use crate::projection::change::Conditions;

const PROFILES: &str = r#"
projection: profiles
version: 1
sources:
  - topic: profiles
    format: json
    type: value.kind
    tombstone: [{ update: profiles, key: { id: key }, set: { gone_at: timestamp } }]
tables:
  profiles:
    primary_key: [id]
    columns:
      id: text
      name: text
      mail: text
      "odd name": text
      visits: bigint not null default 0
      best: bigint
      first_seen: timestamptz
      version: bigint
      gone_at: timestamptz
      note: json
      length: integer generated always as (length(name)) stored
  latest:
    shared: true
    primary_key: [id]
    columns: { id: text, at: bigint, place: text, total: bigint not null default 0, highest: bigint }
events:
  Changed:
    - upsert: profiles
      key: { id: key }
      set: { name: value.name }
      add: { visits: 1 }
"#;

/// The sample with other operations for `Changed`.
fn with(operations: &str) -> String {
    let start = PROFILES.find("    - upsert").expect("operations");
    format!("{}{operations}", &PROFILES[..start])
}

fn refused(operations: &str) -> String {
    lines(&read(&with(operations)).expect_err("a mistake"))
}

fn projection(operations: &str) -> YamlProjection {
    read(&with(operations)).unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)))
}

fn changed(operations: &str, value: &[(&str, Value)]) -> Result<EventChange, RecordFault> {
    let (_, mut changes) = map(&projection(operations), 0, Some("Changed"), Some(&fields(value)))?;
    assert_eq!(changes.len(), 1);
    Ok(changes.remove(0))
}

fn assign(column: usize, effect: Effect, value: impl Into<Value>) -> Assignment {
    Assignment { column: ColumnId(column), effect, value: value.into() }
}

#[test]
fn each_word_is_an_effect() {
    let operation = "    - update: profiles
      key: { id: key }
      set: { name: value.name }
      subtract: { visits: value.n }
      max: { best: value.n }
      min: { version: value.n }
      set_once: { first_seen: value.at, mail: value.mail }
";
    let value = [("name", "Ada".into()), ("n", 3.into()), ("mail", Value::Null)];
    let change = changed(operation, &value).expect("mapped");
    assert_eq!(
        change.operation,
        Change::Update(vec![
            set(1, "Ada"),
            assign(4, Effect::Subtract, 3),
            assign(5, Effect::Max, 3),
            assign(7, Effect::Min, 3),
            assign(2, Effect::SetOnce, Value::Null),
        ]),
        "an absent field is left out"
    );
}

#[test]
fn mode_decides_what_becomes_of_columns_that_are_not_named() {
    let operation = |mode: &str| {
        format!(
            "    - {{ upsert: profiles, key: {{ id: key }}, mode: {mode}, set: {{ name: value.name }} }}\n"
        )
    };
    let value = [("name", "Ada".into())];
    let patched = changed(&operation("patch"), &value).expect("mapped");
    assert_eq!(patched.operation, Change::Upsert(vec![set(1, "Ada")]));
    let replaced = changed(&operation("replace"), &value).expect("mapped");
    assert_eq!(replaced.operation, Change::Replace(vec![set(1, "Ada")]));
}

#[test]
fn a_star_copies_the_fields_that_have_a_column() {
    let operation = r#"    - upsert: profiles
      key: { id: key }
      set: { "*": value.after, mail: value.address }
      add: { visits: 1 }
      except: [note, gone_at]
"#;
    let after = fields(&[
        ("id", "other".into()),
        ("name", "Ada".into()),
        ("odd name", "x".into()),
        ("mail", "not this one".into()),
        ("visits", 7.into()),
        ("note", "left out".into()),
        ("length", 3.into()),
        ("no column", 1.into()),
    ]);
    let change = changed(operation, &[("after", after), ("address", "a@b".into())]).expect("mapped");
    assert_eq!(
        change.operation,
        Change::Upsert(vec![set(2, "a@b"), assign(4, Effect::Add, 1), set(1, "Ada"), set(3, "x")])
    );
    let Wanted::Fields(wanted) = &projection(operation).declaration.sources[0].wanted else {
        panic!("fields")
    };
    let after: Vec<&str> = wanted.0["after"].0.keys().map(String::as_str).collect();
    assert_eq!(after, ["best", "first_seen", "name", "odd name", "version"], "only these are decoded");
}

#[test]
fn conditions_go_with_the_change() {
    let operation = "    - upsert: profiles
      key: { id: key }
      set: { name: value.name }
      if_newer: { version: value.version }
      only_if: { gone_at: null, mail: \"'a@b'\" }
";
    let change = changed(operation, &[("version", 4.into())]).expect("mapped");
    let expected = Conditions {
        if_newer: vec![(ColumnId(7), 4.into())],
        only_if: vec![(ColumnId(8), Value::Null), (ColumnId(2), "a@b".into())],
    };
    assert_eq!((change.operation, change.conditions), (Change::Upsert(vec![]), expected));
    let fault = changed(operation, &[("name", "Ada".into())]).expect_err("no version");
    assert_eq!(
        fault.to_string(),
        "missing_field at map: profiles.version: what if_newer compares is absent: `value.version` (line 33, column 28 of the projection)"
    );
}

#[test]
fn a_delete_may_have_conditions() {
    let operation = "    - { delete: profiles, key: { id: key }, if_newer: { version: value.version } }\n";
    let change = changed(operation, &[("version", 4.into())]).expect("mapped");
    assert_eq!(change.operation, Change::Delete);
    assert_eq!(change.conditions.if_newer, [(ColumnId(7), 4.into())]);
}

#[test]
fn a_tombstone_may_mark_the_row() {
    let projection = read(PROFILES).unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)));
    let (_, changes) = map(&projection, 0, None, None).expect("mapped");
    // The record has no time: absent keeps the column.
    assert_eq!(changes[0].operation, Change::Update(vec![]));
    insta::assert_snapshot!(lines(&read(&PROFILES.replace("update: profiles", "upsert: profiles")).expect_err("a mistake")), @r"
    shop.yaml:8:17: a tombstone makes no rows
        fix: write delete: table, or update: table to mark the row
    ");
}

#[test]
fn in_a_shared_table_the_newest_event_sets_all_columns_or_none() {
    let operation = "    - { upsert: latest, key: { id: key }, set: { place: value.place }, if_newer: { at: value.at } }\n";
    let fault = changed(operation, &[("at", 1.into())]).expect_err("no place");
    assert_eq!(fault.reason, Reason::MissingField);
    assert_eq!(fault.column.as_deref(), Some("latest.place"));
    let change = changed(operation, &[("at", 1.into()), ("place", Value::Null)]).expect("mapped");
    assert_eq!(change.operation, Change::Upsert(vec![set(2, Value::Null)]));
}

#[test]
fn what_does_not_commute_is_refused_in_a_shared_table() {
    let operation =
        |rest: &str| refused(&format!("    - {{ upsert: latest, key: {{ id: key }}, {rest} }}\n"));
    for (rest, said) in [
        ("set: { place: value.p }", "table `latest` is shared: `set` does not commute"),
        ("set_once: { place: value.p }", "table `latest` is shared: `set_once` does not commute"),
        ("mode: replace, add: { total: 1 }", "table `latest` is shared: `mode` does not commute"),
        (
            "add: { total: 1 }, only_if: { place: null }",
            "table `latest` is shared: `only_if` does not commute",
        ),
        ("if_newer: { at: value.at }, add: { total: 1 }", "`add` beside `if_newer` does not commute"),
        (
            "if_newer: { total: value.at }, set: { place: key }",
            "`if_newer` compares `total`, whose default would count",
        ),
    ] {
        let text = operation(rest);
        assert!(text.contains(said) && text.contains("\n    fix: "), "{rest}: {text}");
    }
    let update = refused("    - { update: latest, key: { id: key }, add: { total: 1 } }\n");
    assert!(update.contains("`update` does not commute"), "{update}");
    let other_columns =
        "    - { upsert: latest, key: { id: key }, set: { place: key }, if_newer: { at: value.at } }
    - { upsert: latest, key: { id: key }, set: { highest: 1 }, if_newer: { at: value.at } }
";
    insta::assert_snapshot!(refused(other_columns), @r"
    shop.yaml:31:7: table `latest` is shared, and this operation compares or sets other columns than that of line 30
        fix: let every operation with `if_newer` compare and set the same columns, or write one table for each
    ");
    let fits = "    - { upsert: latest, key: { id: key }, set: { place: key }, if_newer: { at: value.at } }
    - { upsert: latest, key: { id: key }, add: { total: 1 }, max: { highest: value.n } }
";
    assert_eq!(projection(fits).declaration.tables[1].ownership, Ownership::Shared);
}

#[test]
fn a_column_belongs_to_one_family() {
    let two = "    - { upsert: profiles, key: { id: key }, max: { best: value.a } }
    - { upsert: profiles, key: { id: key }, add: { best: value.b } }
";
    insta::assert_snapshot!(refused(two), @r"
    shop.yaml:31:58: `add` of `profiles.best`, which line 30 writes by `max`
        fix: write a column by one of: set, add and subtract; max; min; set_once; if_newer
    ");
    let one = "    - { upsert: profiles, key: { id: key }, set: { best: value.a } }
    - { upsert: profiles, key: { id: key }, subtract: { best: value.b } }
";
    projection(one);
}

#[test]
fn what_makes_no_sense_is_refused_with_its_fix() {
    let operation = |verb: &str, rest: &str| {
        refused(&format!("    - {{ {verb}: profiles, key: {{ id: key }}, {rest} }}\n"))
    };
    for (verb, rest, said) in [
        ("update", "upsert: profiles", "an operation does one thing, not `upsert` and `update`"),
        (
            "update",
            "mode: replace, set: { name: key }",
            "`mode: replace` makes the row, which `update` never does",
        ),
        ("delete", "mode: patch", "`mode` beside `delete`"),
        ("delete", "max: { best: 1 }", "`max` beside `delete`"),
        ("upsert", "mode: merge", "`mode: merge` is not known"),
        ("upsert", "except: [name]", "`except` without `\"*\"` in `set`"),
        ("upsert", "set: { \"*\": 5 }", "`\"*\"` copies the fields of a record"),
        ("upsert", "set: { \"*\": value }, except: [nam]", "table `profiles` has no column `nam`"),
        (
            "upsert",
            "max: { note: value.n }",
            "`max` of the column `note` of type json, whose values have no order here",
        ),
        ("upsert", "max: { best: null }", "`max` with null does nothing"),
        (
            "upsert",
            "set_once: { visits: 1 }",
            "the column `visits` has a default, so that `set_once` never finds it empty",
        ),
        ("upsert", "if_newer: {}", "`if_newer` compares nothing"),
        ("upsert", "if_newer: { note: value.n }", "`if_newer` compares the column `note` of type json"),
        (
            "upsert",
            "set: { best: 1 }, if_newer: { best: value.n }",
            "the column `best` stands under `set` and under `if_newer`",
        ),
        ("upsert", "if_newer: { id: value.n }", "the column `id` is part of the key"),
        ("upsert", "only_if: { name: value.n }", "`only_if` compares with a literal"),
        ("upsert", "only_if: { best: \"'x'\" }", "text never fits the column `best` of type bigint"),
        ("upsert", "only_if: { length: 3 }", "the column `length` is generated by the database"),
        ("upsert", "subtract: { name: 1 }", "`subtract` to the column `name` of type text"),
    ] {
        let text = operation(verb, rest);
        assert!(text.contains(said) && text.contains("\n    fix: "), "{rest}: {text}");
    }
}

#[test]
fn the_digest_covers_every_word() {
    let base = "    - { upsert: profiles, key: { id: key }, set: { name: key } }\n";
    let digest = |operations: &str| projection(operations).declaration.digest;
    let mut seen = vec![digest(base)];
    assert_eq!(seen[0], digest(&base.replace("set:", "mode: patch, set:")), "the default may be written");
    for (from, to) in [
        ("upsert:", "update:"),
        ("set:", "set_once:"),
        ("set:", "max:"),
        ("set:", "min:"),
        ("set:", "mode: replace, set:"),
        ("set:", "if_newer: { version: value.v, best: value.b }, set:"),
        ("set:", "if_newer: { best: value.b, version: value.v }, set:"),
        ("set:", "only_if: { mail: null }, set:"),
        ("set:", "only_if: { mail: 1 }, set:"),
    ] {
        let next = digest(&base.replace(from, to));
        assert!(!seen.contains(&next), "{to}");
        seen.push(next);
    }
    let by_star = base.replace("{ name: key }", "{ \"*\": value }");
    let by_hand = base.replace(
        "{ name: key }",
        "{ name: value.name, mail: value.mail, \"odd name\": 'value[\"odd name\"]', visits: value.visits, best: value.best, \
         first_seen: value.first_seen, version: value.version, gone_at: value.gone_at, note: value.note }",
    );
    assert_eq!(digest(&by_star), digest(&by_hand), "a star is short for its columns");
}
