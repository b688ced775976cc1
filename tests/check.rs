//! `projector check` without services: what is wrong with projections, the configuration, and both together; and `run`, which
//! refuses the same before it looks for any service.

use crate::support::process::Workplace;

const POSTGRES: &str = "{ url: 'postgres://nobody@127.0.0.1:1/none' }";
const SQLITE: &str = "{ url: 'sqlite:views.sqlite' }";

/// A configuration whose services nobody answers for.
fn configuration(store: &str, projections: &str) -> String {
    format!(
        "kafka: {{ bootstrap_servers: '127.0.0.1:1', group_prefix: shop }}\nstore: {store}\nhttp: {{ listen: none }}\n\
         projections: {projections}\n"
    )
}

/// A projection that counts, with these columns beside its key, and more at its end.
fn projection(name: &str, columns: &str, more: &str) -> String {
    format!(
        "projection: {name}\nversion: 1\nsources: [{{ topic: shop.{name}, format: json, type: value.kind }}]\ntables:\n  \
         {name}:\n    primary_key: [id]\n    columns:\n      id: text\n{columns}events:\n  Paid:\n    - upsert: {name}\n      \
         key: {{ id: key }}\n{more}"
    )
}

/// The mistakes of `check`, one a line with its fix; `run` has the same, and both end with 2.
#[track_caller]
fn mistakes(place: &Workplace) -> String {
    let checked = place.run(&["check", "--json"]).expect_code(2);
    let object: serde_json::Value = serde_json::from_str(&checked.stdout).expect("JSON");
    let run = place.run(&["run", "--json"]).expect_code(2);
    let last = run.stdout.lines().last().unwrap_or_default();
    let failure: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(failure["mistakes"], object["mistakes"], "`run` and `check` differ");
    let lines = object["mistakes"].as_array().expect("a list").iter().map(|mistake| {
        let text = |key: &str| mistake[key].as_str().unwrap_or_default().trim_start_matches("./").to_owned();
        let (file, line, column) = (text("file"), &mistake["line"], &mistake["column"]);
        format!("{file}:{line}:{column}: {} | {}", text("message"), text("fix"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn one_file(store: &str, text: &str) -> Workplace {
    let place = Workplace::new();
    place.write("projector.yaml", &configuration(store, "[a.yaml]"));
    place.write("a.yaml", text);
    place
}

#[test]
fn what_sqlite_lacks_is_found_without_the_file() {
    let columns = "      amount: 'numeric(10,2) not null default 0'\n      place: inet\n      name: text\n      NAME: text\n";
    let index = columns.to_owned() + "    indexes: [{ columns: [name], using: gin }]\n";
    let add = "      add: { amount: value.amount }\n";
    let place = one_file(SQLITE, &projection("a", &index, add));
    insta::assert_snapshot!(mistakes(&place), @r"
    a.yaml:10:14: column a.place is inet, a type that SQLite does not have | use a portable type, such as text or json, or PostgreSQL
    a.yaml:13:15: an index of table a uses gin, which SQLite does not have | leave `using` out, or use PostgreSQL
    a.yaml:18:22: a.amount is numeric(10,2), and SQLite does not add to such a column exactly | count in a bigint, such as one of cents, or use PostgreSQL
    ");
    let place = one_file(POSTGRES, &projection("a", &index, add));
    place.run(&["check"]).expect_code(0);
}

#[test]
fn what_sqlite_does_not_take_is_found_in_memory() {
    let columns = "      name: text\n      NAME: text\n";
    insta::assert_snapshot!(mistakes(&one_file(SQLITE, &projection("a", columns, ""))), @"a.yaml:5:3: SQLite does not take the table: duplicate column name: NAME | write it as SQLite has it, or use PostgreSQL");
    let columns = "      name: text\n    indexes: [{ expression: md5(name) }]\n";
    insta::assert_snapshot!(mistakes(&one_file(SQLITE, &projection("a", columns, ""))), @"a.yaml:10:15: SQLite does not take the index: no such function: md5 | write it as SQLite has it, or use PostgreSQL");
    let views = "views:\n  names: { sql: 'select nme from {a}' }\n  odd: { sql: 'select id from {a} a join theirs t on t.id = a.id' }\n";
    let place = one_file(SQLITE, &projection("a", "      name: text\n", views));
    insta::assert_snapshot!(mistakes(&place), @"a.yaml:15:17: SQLite does not take the view names: no such column: nme | write it as SQLite has it, or use PostgreSQL");
    assert!(!place.path().join("views.sqlite").exists(), "nothing is made");
}

#[test]
fn names_that_two_projections_have_are_found() {
    for (store, name) in [(POSTGRES, "orders"), (SQLITE, "Orders")] {
        let place = Workplace::new();
        place.write("projector.yaml", &configuration(store, "[a.yaml, b.yaml]"));
        place.write("a.yaml", &projection("a", "", "views: { orders: { sql: 'select id from {a}' } }\n"));
        let view = format!("views: {{ {name}: {{ sql: 'select id from {{b}}' }} }}\n");
        place.write("b.yaml", &projection("b", "", &view));
        let found = mistakes(&place);
        assert!(found.starts_with("b.yaml:13:25: "), "{found}");
        assert!(found.contains(&format!("`{name}` is the name of a view of a@1 already")), "{found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
    let place = Workplace::new();
    place.write("projector.yaml", &configuration(POSTGRES, "[a.yaml, b.yaml, c.yaml]"));
    place.write("a.yaml", &projection("a", "", ""));
    place.write("b.yaml", &projection("a", "", ""));
    place.write("c.yaml", &projection("a", "", "").replace("projection: a", "projection: c"));
    insta::assert_snapshot!(mistakes(&place), @r"
    b.yaml:1:13: the projection `a` is in ./a.yaml already | keep one of the two under `projections`; versions beside each other are not in this release
    c.yaml:5:3: `a__v1` is the name of a table of a@1 already | choose another name: the tables and views of all projections stand beside each other
    ");
    place.run(&["check", "a.yaml", "b.yaml"]).expect_code(0);
}

#[test]
fn what_the_configuration_lacks_for_a_projection_is_found() {
    let avro = projection("a", "", "").replace("format: json, type: value.kind", "format: avro");
    let place = one_file(POSTGRES, &avro);
    insta::assert_snapshot!(mistakes(&place), @"a.yaml:3:11: source shop.a reads Avro with a schema id, and ./projector.yaml names no registry | set schema_registry: { url: … } there");
    place.run(&["check", "a.yaml"]).expect_code(0);
    place.write(
        "projector.yaml",
        &(configuration(POSTGRES, "[a.yaml]") + "schema_registry: { url: 'http://r:1' }\n"),
    );
    place.run(&["check"]).expect_code(0);

    let place = one_file(POSTGRES, &projection("a", "", "").replace("shop.a,", "shop.a.dlq,"));
    insta::assert_snapshot!(mistakes(&place), @"a.yaml:3:20: a@1 reads the topic shop.a.dlq, and its dead letters go there | set `dead_letter.topic` to another one");

    let place = Workplace::new();
    place.write("projector.yaml", &configuration(POSTGRES, "[]"));
    insta::assert_snapshot!(mistakes(&place), @"projector.yaml:4:14: no projection is configured | list the files: projections: [customers.v1.yaml]");
}

#[test]
fn schema_files_are_read_as_the_decoder_does() {
    let source = "format: avro, framing: none, schemas: [price.avsc, a.avsc]";
    let text = projection("a", "", "").replace("format: json, type: value.kind", source);
    let place = one_file(POSTGRES, &text);
    let record = |name: &str, kind: &str| {
        format!(r#"{{"type": "record", "name": "{name}", "fields": [{{"name": "x", "type": "{kind}"}}]}}"#)
    };
    place.write("price.avsc", &record("Price", "long"));
    place.write("a.avsc", &record("A", "Price"));
    place.run(&["check"]).expect_code(0);
    place.write("a.avsc", &record("A", "Prize"));
    let found = mistakes(&place);
    assert!(
        found.starts_with("a.yaml:3:79: the schema ") && found.contains("a.avsc cannot be used"),
        "{found}"
    );
    assert!(found.contains("Prize"), "{found}");
    place.write("price.avsc", "{ record");
    let found = mistakes(&place);
    assert!(found.starts_with("a.yaml:3:67: ") && found.contains("not valid JSON"), "{found}");
    assert!(place.run(&["check", "a.yaml"]).expect_code(2).stdout.contains("not valid JSON"));
}
