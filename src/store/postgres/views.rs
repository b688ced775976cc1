//! Views: what readers query, and the state of what they query.

use super::PostgresStore;
use super::names::{self, quote};
use super::schema::refused;
use super::work::Work;
use crate::projection::{Declaration, Table, View, ViewBody};
use crate::store::StoreError;

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
    let body = match &view.body {
        ViewBody::Table(id) => declaration
            .tables
            .get(id.0)
            .map_or_else(String::new, |table| select(schema, table, declaration.version)),
        ViewBody::Sql(sql) => with_tables(schema, declaration, sql),
    };
    format!("create view {}.{} as\n{body}", quote(schema), quote(&view.name))
}

/// The rows of a table without the projector's own columns.
fn select(schema: &str, table: &Table, version: u32) -> String {
    let columns: Vec<String> = table.columns.iter().map(|column| quote(&column.name)).collect();
    format!("select {} from {}.{}", columns.join(", "), quote(schema), quote(&table.physical_name(version)))
}

/// Puts row sources in place of `{table}`. Braces around anything else stay as they are.
fn with_tables(schema: &str, declaration: &Declaration, sql: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    let mut rest = sql.trim().trim_end_matches(';');
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let named = after.split_once('}').and_then(|(name, tail)| {
            declaration.tables.iter().find(|table| table.name == name.trim()).map(|table| (table, tail))
        });
        match named {
            Some((table, tail)) => {
                out.push('(');
                out.push_str(&select(schema, table, declaration.version));
                out.push(')');
                rest = tail;
            }
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The statements that let readers query a view.
pub(super) fn grants(schema: &str, readers: &[String], view: &View) -> Vec<String> {
    let grant = |reader: &String| {
        format!("grant select on {}.{} to {}", quote(schema), quote(&view.name), quote(reader))
    };
    readers.iter().map(grant).collect()
}

/// Makes a view with its grants.
pub(super) async fn make_view(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declaration: &Declaration,
    view: &View,
) -> Result<(), StoreError> {
    let script = script(store, declaration, view)?;
    work.attempt(&script).await?.map_err(|error| refused(&format!("view {}", view.name), error))
}

/// Makes a view and takes it back, to see whether the database takes it. Nobody else ever sees it (promise P8).
pub(super) async fn try_view(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declaration: &Declaration,
    view: &View,
) -> Result<(), StoreError> {
    work.script("savepoint trial").await?;
    make_view(store, work, declaration, view).await?;
    work.script("rollback to savepoint trial; release savepoint trial").await
}

fn script(store: &PostgresStore, declaration: &Declaration, view: &View) -> Result<String, StoreError> {
    names::check("view", &view.name)?;
    let mut statements = vec![create_view(&store.schema, declaration, view)];
    statements.extend(grants(&store.schema, &store.readers, view));
    Ok(statements.join(";\n"))
}
