//! What the database's catalogue says about relations.

use super::positions::get;
use super::work::{Parameters, Work};
use crate::store::StoreError;

/// A table or view as it is.
#[derive(Debug)]
pub(super) struct Relation {
    /// `r` for a table, `v` for a view; others as in `pg_class.relkind`.
    pub(super) kind: String,
    pub(super) columns: Vec<ColumnFacts>,
    /// The names of the primary key's columns in its order; empty where there is none that is checked at once.
    pub(super) primary_key: Vec<String>,
}

/// A column as it is.
#[derive(Debug)]
pub(super) struct ColumnFacts {
    pub(super) name: String,
    /// The type without its length.
    pub(super) base_type: String,
    /// The type with its length.
    pub(super) full_type: String,
    pub(super) is_not_null: bool,
    pub(super) is_generated: bool,
    /// The default, or what generates the column, as SQL.
    pub(super) expression: Option<String>,
}

/// The relation with this name, if there is one.
pub(super) async fn relation(
    work: &mut Work<'_>,
    schema: &str,
    name: &str,
) -> Result<Option<Relation>, StoreError> {
    let sql = "select c.oid::int8, c.relkind::text from pg_class c join pg_namespace n on n.oid = c.relnamespace \
               where n.nspname = $1 and c.relname = $2";
    let rows = work.rows(sql, Parameters::new().and(schema).and(name)).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (oid, kind): (i64, String) = (get(row, 0)?, get(row, 1)?);
    Ok(Some(Relation {
        kind,
        columns: columns(work, oid).await?,
        primary_key: primary_key(work, oid).await?,
    }))
}

async fn columns(work: &mut Work<'_>, oid: i64) -> Result<Vec<ColumnFacts>, StoreError> {
    let sql = "select a.attname::text, format_type(a.atttypid, null), format_type(a.atttypid, a.atttypmod), \
                 a.attnotnull, a.attgenerated <> '', pg_get_expr(d.adbin, d.adrelid) \
               from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum \
               where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped order by a.attnum";
    let rows = work.rows(sql, Parameters::new().and(oid)).await?;
    let facts = rows.iter().map(|row| {
        Ok(ColumnFacts {
            name: get(row, 0)?,
            base_type: get(row, 1)?,
            full_type: get(row, 2)?,
            is_not_null: get(row, 3)?,
            is_generated: get(row, 4)?,
            expression: get(row, 5)?,
        })
    });
    facts.collect()
}

async fn primary_key(work: &mut Work<'_>, oid: i64) -> Result<Vec<String>, StoreError> {
    let sql = "select a.attname::text from pg_index i \
               cross join lateral unnest(i.indkey::int2[]) with ordinality as k(number, n) \
               join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number \
               where i.indrelid = $1::oid and i.indisprimary and i.indimmediate and i.indisvalid order by k.n";
    let rows = work.rows(sql, Parameters::new().and(oid)).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

/// Whether there is a valid index with this name.
pub(super) async fn has_index(work: &mut Work<'_>, schema: &str, name: &str) -> Result<bool, StoreError> {
    let sql = "select from pg_class c join pg_namespace n on n.oid = c.relnamespace \
               join pg_index i on i.indexrelid = c.oid \
               where n.nspname = $1 and c.relname = $2 and i.indisvalid";
    Ok(!work.rows(sql, Parameters::new().and(schema).and(name)).await?.is_empty())
}

/// What the catalogue calls a type, without its length; `None` where it has none of this name.
pub(super) async fn type_name(work: &mut Work<'_>, declared: &str) -> Result<Option<String>, StoreError> {
    let rows =
        work.rows("select format_type(to_regtype($1)::oid, null)", Parameters::new().and(declared)).await?;
    match rows.first() {
        Some(row) => get(row, 0),
        None => Ok(None),
    }
}
