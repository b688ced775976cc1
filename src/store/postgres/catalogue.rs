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

/// An index as it is.
#[derive(Debug)]
pub(super) struct IndexFacts {
    /// The table that it is one of.
    pub(super) table: String,
    pub(super) is_valid: bool,
    pub(super) is_unique: bool,
    /// Method, columns and condition, as the catalogue writes them.
    pub(super) definition: String,
}

/// The index with this name, if there is one.
pub(super) async fn index(
    work: &mut Work<'_>,
    schema: &str,
    name: &str,
) -> Result<Option<IndexFacts>, StoreError> {
    let sql = "select t.relname::text, i.indisvalid, i.indisunique, \
                 substring(pg_get_indexdef(i.indexrelid) from ' USING (.*)$') \
               from pg_class c join pg_namespace n on n.oid = c.relnamespace \
               join pg_index i on i.indexrelid = c.oid join pg_class t on t.oid = i.indrelid \
               where n.nspname = $1 and c.relname = $2";
    let rows = work.rows(sql, Parameters::new().and(schema).and(name)).await?;
    let facts = |row| {
        Ok(IndexFacts {
            table: get(row, 0)?,
            is_valid: get(row, 1)?,
            is_unique: get(row, 2)?,
            definition: get(row, 3)?,
        })
    };
    rows.first().map(facts).transpose()
}

/// What the catalogue keeps of a view.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ViewFacts {
    /// Its query, as the catalogue writes it.
    pub(super) query: String,
    /// Its columns with their types.
    pub(super) columns: Vec<String>,
}

/// The view with this quoted name, if there is one.
pub(super) async fn view(work: &mut Work<'_>, qualified: &str) -> Result<Option<ViewFacts>, StoreError> {
    let sql = "select pg_get_viewdef(c.oid), \
                 array(select quote_ident(a.attname) || ' ' || format_type(a.atttypid, a.atttypmod) \
                   from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 order by a.attnum) \
               from pg_class c where c.oid = to_regclass($1) and c.relkind = 'v'";
    let rows = work.rows(sql, Parameters::new().and(qualified)).await?;
    rows.first().map(|row| Ok(ViewFacts { query: get(row, 0)?, columns: get(row, 1)? })).transpose()
}

/// What depends on these relations and is none of them nor a part of one, as the database describes it: "view s.x".
pub(super) async fn dependents(
    work: &mut Work<'_>,
    schema: &str,
    names: &[String],
) -> Result<Vec<String>, StoreError> {
    let sql = "with ours as (select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace \
                 where n.nspname = $1 and c.relname = any($2)) \
               select distinct coalesce(pg_describe_object('pg_class'::regclass, r.ev_class, 0), \
                 pg_describe_object(d.classid, d.objid, d.objsubid)) as what \
               from pg_depend d \
               left join pg_rewrite r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid \
               left join pg_constraint k on d.classid = 'pg_constraint'::regclass and k.oid = d.objid \
               where d.refclassid = 'pg_class'::regclass and d.refobjid in (select oid from ours) and d.deptype = 'n' \
                 and coalesce(r.ev_class, k.conrelid, 0::oid) not in (select oid from ours) \
               order by what";
    let rows = work.rows(sql, Parameters::new().and(schema).and(names)).await?;
    rows.iter().map(|row| get(row, 0)).collect()
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
