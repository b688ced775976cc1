//! What `check --connect` sees of a database: read only, in the catalogue.

use super::PostgresStore;
use super::connections::Purpose;
use super::errors::bug;
use super::layout::{MISSING_ROLE, own_tables};
use super::positions::get;
use super::work::{Parameters, Work};
use crate::config::settings::DdlMode;
use crate::projection::Declaration;
use crate::store::sql::quote;
use crate::store::{Condition, LayoutState, Obstacle, StoreError};

const ACTION: &str = "look at the store";
/// The table that shows whether a store has been laid out.
const VERSIONS: &str = "projector_versions";

pub(super) async fn condition(
    store: &PostgresStore,
    declarations: &[&Declaration],
) -> Result<Condition, StoreError> {
    let mut work = Work::begin(&store.connections, Purpose::Other, ACTION, store.write_limits()).await?;
    let seen = as_writer(store, &mut work, declarations).await;
    let mut condition = work.end(seen).await?;
    if store.ddl == DdlMode::Apply {
        let connections = store.ddl_connections();
        let mut work = Work::begin(connections, Purpose::Other, ACTION, store.write_limits()).await?;
        let seen = as_maker(store, &mut work).await;
        condition.obstacles.extend(work.end(seen).await?);
    }
    Ok(condition)
}

fn obstacle(problem: impl Into<String>, fix: impl Into<String>) -> Obstacle {
    Obstacle { problem: problem.into(), fix: fix.into() }
}

/// What the role that writes rows finds: which tables are there, and whether it may use them.
async fn as_writer(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declarations: &[&Declaration],
) -> Result<Condition, StoreError> {
    let own: Vec<String> = own_tables().map(str::to_owned).collect();
    let declared = declarations.iter().flat_map(|declaration| {
        declaration.tables.iter().map(|table| table.physical_name(declaration.version))
    });
    let wanted: Vec<String> = own.iter().cloned().chain(declared).collect();
    let there = tables(store, work, wanted.clone()).await?;
    let layout = layout_of(&there);
    let mut obstacles = missing_rights(store, work, &there).await?;
    obstacles.extend(missing_readers(store, work).await?);
    let missing: Vec<String> = wanted.into_iter().filter(|name| !there.contains(name)).collect();
    if store.ddl == DdlMode::Verify && !missing.is_empty() {
        obstacles.push(obstacle(
            format!("schema {} has no {}, and `store.ddl` is `verify`", store.schema, missing.join(", ")),
            "make them with the SQL of `projector ddl`, or set `ddl: apply`",
        ));
    }
    Ok(Condition { layout, obstacles })
}

/// Whether the projector's own tables are there.
pub(super) async fn layout(store: &PostgresStore) -> Result<LayoutState, StoreError> {
    let mut work = Work::begin(&store.connections, Purpose::Other, ACTION, store.write_limits()).await?;
    let there = tables(store, &mut work, vec![VERSIONS.to_owned()]).await;
    Ok(layout_of(&work.end(there).await?))
}

fn layout_of(tables: &[String]) -> LayoutState {
    if tables.iter().any(|name| name == VERSIONS) { LayoutState::Present } else { LayoutState::Absent }
}

/// Those of the tables that are there.
async fn tables(
    store: &PostgresStore,
    work: &mut Work<'_>,
    wanted: Vec<String>,
) -> Result<Vec<String>, StoreError> {
    let sql = "select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace \
               where n.nspname = $1 and c.relname = any($2) and c.relkind in ('r', 'p')";
    let rows = work.rows(sql, Parameters::new().and(&*store.schema).and(wanted)).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

/// What this role may not do with the tables that are there.
async fn missing_rights(
    store: &PostgresStore,
    work: &mut Work<'_>,
    tables: &[String],
) -> Result<Vec<Obstacle>, StoreError> {
    let sql = "select current_user::text, c.relname::text, string_agg(r.name, ', ' order by r.n) \
               from pg_class c join pg_namespace n on n.oid = c.relnamespace \
               cross join unnest(array['select', 'insert', 'update', 'delete']) with ordinality as r(name, n) \
               where n.nspname = $1 and c.relname = any($2) and c.relkind in ('r', 'p') \
                 and not (has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, r.name)) \
               group by c.relname order by c.relname";
    let rows = work.rows(sql, Parameters::new().and(&*store.schema).and(tables.to_vec())).await?;
    let missing = rows.iter().map(|row| {
        let (role, table, rights): (String, String, String) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        let (schema, to) = (quote(&store.schema), quote(&role));
        Ok(obstacle(
            format!("role {role} may not {rights} on table {table}"),
            format!(
                "grant usage on schema {schema} to {to}; grant {rights} on {schema}.{} to {to}",
                quote(&table)
            ),
        ))
    });
    missing.collect()
}

async fn missing_readers(store: &PostgresStore, work: &mut Work<'_>) -> Result<Vec<Obstacle>, StoreError> {
    let rows = work.rows(MISSING_ROLE, Parameters::new().and(&*store.readers)).await?;
    let missing = rows.iter().map(|row| {
        let role: String = get(row, 0)?;
        Ok(obstacle(
            format!("`store.readers` names the role {role}, which the database does not have"),
            "create the role or take it out of the list",
        ))
    });
    missing.collect()
}

/// Whether the role that makes tables may make them.
async fn as_maker(store: &PostgresStore, work: &mut Work<'_>) -> Result<Option<Obstacle>, StoreError> {
    let sql = "select current_user::text, current_database()::text, n.oid is not null, \
                 case when n.oid is null then has_database_privilege(current_database(), 'create') \
                      else has_schema_privilege(n.oid, 'create') and has_schema_privilege(n.oid, 'usage') end \
               from (values (1)) as one left join pg_namespace n on n.nspname = $1";
    let rows = work.rows(sql, Parameters::new().and(&*store.schema)).await?;
    let row = rows.first().ok_or_else(|| bug(ACTION, "no answer about rights"))?;
    let (role, database): (String, String) = (get(row, 0)?, get(row, 1)?);
    let (has_schema, may_create): (bool, bool) = (get(row, 2)?, get(row, 3)?);
    if may_create {
        return Ok(None);
    }
    let (schema, to) = (&store.schema, quote(&role));
    Ok(Some(if has_schema {
        obstacle(
            format!("role {role} may not make tables and views in schema {schema}"),
            format!(
                "grant usage, create on schema {} to {to}; or name a role that may in `store.admin_url`",
                quote(schema)
            ),
        )
    } else {
        obstacle(
            format!("schema {schema} is missing, and role {role} may not make it"),
            format!(
                "create schema {} authorization {to}; or grant create on database {} to {to}",
                quote(schema),
                quote(&database)
            ),
        )
    }))
}
