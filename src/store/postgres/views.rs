//! Views: what readers query, and the state of what they query.

use super::PostgresStore;
use super::names;
use super::schema::refused;
use super::work::Work;
use crate::projection::{Declaration, Table, View, ViewBody};
use crate::store::StoreError;
use crate::store::sql::{quote, quote_list, with_tables};

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
        ViewBody::Sql(sql) => {
            with_tables(declaration, sql, |table| select(schema, table, declaration.version))
        }
    };
    format!("create view {}.{} as\n{body}", quote(schema), quote(&view.name))
}

/// The rows of a table without the projector's own columns.
fn select(schema: &str, table: &Table, version: u32) -> String {
    let columns = quote_list(table.columns.iter().map(|column| column.name.as_str()));
    format!("select {columns} from {}.{}", quote(schema), quote(&table.physical_name(version)))
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
