//! Rights of the roles that read and write: granted, or looked at.

use super::PostgresStore;
use super::gaps::Gaps;
use super::positions::get;
use super::work::{Parameters, Work};
use crate::store::StoreError;
use crate::store::sql::quote;

/// Lets a role find what is in the schema.
pub(super) fn grant_usage(schema: &str, role: &str) -> String {
    format!("grant usage on schema {} to {}", quote(schema), quote(role))
}

/// Lets a role apply to a table.
pub(super) fn grant_table(schema: &str, table: &str, role: &str) -> String {
    format!("grant select, insert, update, delete on {}.{} to {}", quote(schema), quote(table), quote(role))
}

/// Gives the role of `store.url` what it needs on tables that another role has made.
pub(super) async fn grant_tables(
    store: &PostgresStore,
    work: &mut Work<'_>,
    tables: &[String],
) -> Result<(), StoreError> {
    let Some(role) = store.granted_role() else { return Ok(()) };
    let mut script = vec![grant_usage(&store.schema, role)];
    script.extend(tables.iter().map(|table| grant_table(&store.schema, table, role)));
    work.script(&script.join("; ")).await
}

/// Looks whether the role of `store.url` has what it needs on those of the tables that are there, and returns those that
/// it cannot read.
pub(super) async fn verify_rights(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    tables: &[String],
) -> Result<Vec<String>, StoreError> {
    let (schema, role) = (&store.schema, store.role());
    let sql = "select c.relname::text, has_schema_privilege(n.oid, 'usage'), has_table_privilege(c.oid, 'select') \
               from pg_class c join pg_namespace n on n.oid = c.relnamespace \
               where n.nspname = $1 and c.relname = any($2) and c.relkind in ('r', 'p') \
                 and not (has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select') \
                   and has_table_privilege(c.oid, 'insert') and has_table_privilege(c.oid, 'update') \
                   and has_table_privilege(c.oid, 'delete')) \
               order by array_position($2, c.relname::text)";
    let rows = work.rows(sql, Parameters::new().and(&**schema).and(tables)).await?;
    let mut barred = Vec::new();
    for row in &rows {
        let (table, may_use, may_read): (String, bool, bool) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        let script = [grant_usage(schema, role), grant_table(schema, &table, role)];
        gaps.add(format!("role {role} may not apply to table {table}"), script.join(";\n"));
        if !(may_use && may_read) {
            barred.push(table);
        }
    }
    Ok(barred)
}
