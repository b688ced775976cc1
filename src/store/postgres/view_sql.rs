//! The SQL of views: what readers query, and the state of what they query.

use super::PostgresStore;
use super::layout::in_schema;
use super::types::quote_text;
use crate::projection::{Declaration, Table, View, ViewBody};
use crate::store::sql::{quote, quote_list};
use crate::store::view_text::ViewText;

/// A view with fixed SQL. `{s}` stands for the schema.
pub(super) struct FixedView {
    pub(super) name: &'static str,
    pub(super) create: &'static str,
}

/// The state of each view of each projection. The rules are those of `status::rules`, by the database's clock.
pub(super) const STATUS_VIEW: FixedView =
    FixedView { name: "projector_view_status", create: include_str!("view_status.sql") };

/// The statement that makes a view.
pub(super) fn create_view(schema: &str, declaration: &Declaration, view: &View) -> String {
    format!("create view {} as\n{}", qualified(schema, &view.name), query(schema, declaration, view))
}

/// A view's name as SQL reads it everywhere.
pub(super) fn qualified(schema: &str, name: &str) -> String {
    format!("{}.{}", quote(schema), quote(name))
}

/// The query of a view.
pub(super) fn query(schema: &str, declaration: &Declaration, view: &View) -> String {
    match &view.body {
        ViewBody::Table(id) => declaration
            .tables
            .get(id.0)
            .map_or_else(String::new, |table| select(schema, table, declaration.version)),
        ViewBody::Sql(sql) => view_text(schema, declaration, sql).text,
    }
}

/// The SQL of a view with its row sources. One of a FROM clause is called by its table's name where the SQL gives it none:
/// PostgreSQL before 16 takes no row source without a name.
fn view_text<'s>(schema: &str, declaration: &Declaration, sql: &'s str) -> ViewText<'s> {
    ViewText::new(declaration, sql, |table, around| {
        let alias = if is_in_from(around.before) && !begins_with_alias(around.after) {
            format!(" as {}", quote(&table.name))
        } else {
            String::new()
        };
        format!("({}){alias}", select(schema, table, declaration.version))
    })
}

/// Where in the declared SQL of a view a character of its query stands, from 0: line and column, both from 1.
pub(super) fn place_in_sql(
    schema: &str,
    declaration: &Declaration,
    view: &View,
    character: usize,
) -> Option<(usize, usize)> {
    match &view.body {
        ViewBody::Table(_) => None,
        ViewBody::Sql(sql) => Some(view_text(schema, declaration, sql).place(character)),
    }
}

/// What makes the views of a version that has caught up, and nothing else: it ends with an error before that.
pub(super) fn ddl(store: &PostgresStore, declaration: &Declaration) -> Vec<String> {
    let schema = &store.schema;
    let mut statements = vec![guard(schema, declaration)];
    for view in &declaration.views {
        statements.push(create_view(schema, declaration, view).replacen(
            "create view",
            "create or replace view",
            1,
        ));
        statements.extend(store.readers.iter().map(|reader| grant(schema, &view.name, reader)));
    }
    statements
}

/// Refuses to go on while readers would see a view half-built (promise P8).
fn guard(schema: &str, declaration: &Declaration) -> String {
    let label = declaration.label();
    let text = |text: &str| quote_text(text);
    let sql = format!(
        "begin\n  \
           if not exists (select from {{s}}.projector_versions where projection = {name} and version = {version}) then\n    \
             raise exception using message = {unknown};\n  \
           end if;\n  \
           if exists (select from {{s}}.projector_positions\n             \
                      where projection = {name} and version = {version} and position < boundary) then\n    \
             raise exception using message = {early};\n  \
           end if;\nend",
        name = text(&declaration.name),
        version = declaration.version,
        unknown = text(&format!("{label} is not registered: start `projector run` first")),
        early = text(&format!("{label} has not caught up yet: readers would see its views half-built")),
    );
    format!("do {}", quote_text(&in_schema(schema, &sql)))
}

/// The rows of a table without the projector's own columns.
fn select(schema: &str, table: &Table, version: u32) -> String {
    let columns = quote_list(table.columns.iter().map(|column| column.name.as_str()));
    format!("select {columns} from {}.{}", quote(schema), quote(&table.physical_name(version)))
}

/// Words that may follow a table in a FROM clause and are no alias.
const AFTER_TABLE: &[&str] = &[
    "where",
    "group",
    "having",
    "window",
    "order",
    "limit",
    "offset",
    "fetch",
    "for",
    "union",
    "intersect",
    "except",
    "join",
    "inner",
    "left",
    "right",
    "full",
    "cross",
    "natural",
    "on",
    "using",
    "tablesample",
];

fn is_in_from(before: &str) -> bool {
    let before = before.trim_end();
    let word = before.rsplit(|character: char| !character.is_alphanumeric()).next().unwrap_or_default();
    before.ends_with(',') || ["from", "join", "lateral"].contains(&word.to_ascii_lowercase().as_str())
}

fn begins_with_alias(after: &str) -> bool {
    let after = after.trim_start();
    let word: String =
        after.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect();
    after.starts_with('"') || (!word.is_empty() && !AFTER_TABLE.contains(&word.to_ascii_lowercase().as_str()))
}

/// The statement that lets a reader query a view.
pub(super) fn grant(schema: &str, view: &str, reader: &str) -> String {
    format!("grant select on {} to {}", qualified(schema, view), quote(reader))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract;

    #[test]
    fn a_table_without_an_alias_is_called_by_its_name() {
        let declaration = contract::declaration(vec![contract::items()]);
        let rows = select("s", &declaration.tables[0], 1);
        for (sql, expected) in [
            ("select 1 from {items}", "select 1 from (…) as \"items\""),
            ("select 1 from {items}, {items} b", "select 1 from (…) as \"items\", (…) b"),
            ("select 1 from {items} WHERE true", "select 1 from (…) as \"items\" WHERE true"),
            ("a JOIN { items } AS x on true", "a JOIN (…) AS x on true"),
            ("from {items} \"odd\"", "from (…) \"odd\""),
            ("where id in {items}", "where id in (…)"),
            ("from {other} '{items'", "from {other} '{items'"),
        ] {
            assert_eq!(view_text("s", &declaration, sql).text.replace(&rows, "…"), expected);
        }
    }
}
