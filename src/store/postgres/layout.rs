//! The schema and the projector's own tables: made, or verified, under the store's lock.

use std::sync::Arc;

use super::PostgresStore;
use super::catalogue;
use super::connections::Purpose;
use super::errors::sqlstate;
use super::gaps::Gaps;
use super::own_tables::{INDEXES, TABLES};
use super::positions::get;
use super::rights;
use super::schema;
use super::types::quote_text;
use super::view_sql::{self, STATUS_VIEW};
use super::views;
use super::work::{Parameters, Work};
use crate::config::settings::DdlMode;
use crate::projection::Declaration;
use crate::store::StoreError;
use crate::store::admission;
use crate::store::sql::quote;

/// The number of this layout.
pub(super) const LAYOUT: i32 = 1;
/// The oldest layout number whose program may use these tables.
const OLDEST_BINARY: i32 = 1;

/// Which of some roles the database does not have.
pub(super) const MISSING_ROLE: &str =
    "select r from unnest($1::text[]) as r where not exists (select from pg_roles where rolname = r)";

/// The names of the projector's own tables.
pub(super) fn own_tables() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|table| table.name)
}

/// Everything that must be there before a version can be registered, whatever of it is there already.
pub(super) fn ddl(store: &PostgresStore) -> Vec<String> {
    let schema = &store.schema;
    let mut statements = vec![format!("create schema if not exists {}", quote(schema))];
    let own = TABLES.iter().map(|table| ("create table ", table.create));
    let own = own.chain(INDEXES.iter().map(|index| ("create index ", index.create)));
    statements.extend(own.map(|(create, sql)| {
        in_schema(schema, &sql.replacen(create, &format!("{create}if not exists "), 1))
    }));
    statements.push(first_row(schema));
    statements.push(in_schema(schema, STATUS_VIEW.create));
    statements.push(comment_on_status(schema));
    statements.push(rights::grant_usage(schema, store.role()));
    statements.extend(TABLES.iter().map(|table| rights::grant_table(schema, table.name, store.role())));
    for reader in &store.readers {
        statements.push(rights::grant_usage(schema, reader));
        statements.push(view_sql::grant(schema, STATUS_VIEW.name, reader));
    }
    statements
}

fn first_row(schema: &str) -> String {
    format!(
        "insert into {}.projector_layout (layout, oldest_binary) values ({LAYOUT}, {OLDEST_BINARY}) on conflict do nothing",
        quote(schema)
    )
}

fn comment_on_status(schema: &str) -> String {
    let comment = quote_text("The state of each view, by the database's clock.");
    format!("comment on view {}.{} is {comment}", quote(schema), STATUS_VIEW.name)
}

/// Puts the schema into a statement of this program.
pub(super) fn in_schema(schema: &str, sql: &str) -> String {
    sql.replace("{s}", &quote(schema))
}

pub(super) async fn lay_out(store: &PostgresStore) -> Result<(), StoreError> {
    let connections = store.ddl_connections();
    let mut work = Work::begin(connections, Purpose::Other, "lay out the store", store.ddl_limits()).await?;
    let mut gaps = Gaps::default();
    let done = lay_out_in(store, &mut work, &mut gaps).await;
    let made = gaps.made().clone();
    work.end(done.and_then(|()| gaps.into_result(store))).await?;
    made.tell(store);
    Ok(())
}

/// Names everything that somebody else has yet to make for the projector and these projections, all in one error.
pub(super) async fn verify(
    store: &PostgresStore,
    declarations: &[Arc<Declaration>],
) -> Result<(), StoreError> {
    if store.ddl == DdlMode::Apply {
        return Ok(());
    }
    let action = "verify the store";
    let mut work = Work::begin(&store.connections, Purpose::Other, action, store.ddl_limits()).await?;
    let done = verify_in(store, &mut work, declarations).await;
    work.end(done).await
}

async fn verify_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declarations: &[Arc<Declaration>],
) -> Result<(), StoreError> {
    let mut gaps = Gaps::default();
    lay_out_in(store, work, &mut gaps).await?;
    for declaration in declarations {
        for table in &declaration.tables {
            schema::make_table(store, work, &mut gaps, table, declaration.version).await?;
        }
        let tables = schema::physical_names(declaration);
        rights::verify_rights(store, work, &mut gaps, &tables).await?;
    }
    gaps.into_result(store)
}

async fn lay_out_in(store: &PostgresStore, work: &mut Work<'_>, gaps: &mut Gaps) -> Result<(), StoreError> {
    lock(work, &store.schema).await?;
    make_schema(store, work, gaps).await?;
    let names: Vec<String> = TABLES.iter().map(|table| table.name.to_owned()).collect();
    let mut is_readable = catalogue::relation(work, &store.schema, "projector_layout").await?.is_some();
    if store.ddl == DdlMode::Verify {
        let barred = rights::verify_rights(store, work, gaps, &names).await?;
        is_readable &= !barred.iter().any(|name| name == "projector_layout");
    }
    if is_readable {
        refuse_newer(store, work).await?;
    }
    let is_ours = is_laid_out(store, work).await?;
    for table in TABLES {
        if let Some(relation) = catalogue::relation(work, &store.schema, table.name).await? {
            table.verify(&relation).map_err(|error| {
                let elsewhere = "another `store.schema`";
                if is_ours { error } else { admission::not_the_projectors(table.name, error, elsewhere) }
            })?;
            continue;
        }
        gaps.made().tables.push(table.name.to_owned());
        let sql = in_schema(&store.schema, table.create);
        gaps.make(store, work, &format!("table {} is missing", table.name), &sql).await?;
    }
    for index in INDEXES {
        if let Some(facts) = catalogue::index(work, &store.schema, index.name).await? {
            index.verify(&facts)?;
            continue;
        }
        let sql = in_schema(&store.schema, index.create);
        gaps.make(store, work, &format!("index {} is missing", index.name), &sql).await?;
    }
    if store.ddl == DdlMode::Apply || !(is_readable && has_first_row(store, work).await?) {
        gaps.make(store, work, "the row of projector_layout is missing", &first_row(&store.schema)).await?;
    }
    make_status_view(store, work, gaps).await?;
    if store.ddl == DdlMode::Apply {
        rights::grant_tables(store, work, &names).await?;
    }
    Ok(())
}

/// Waits for the lock that all changes of tables and registrations take, until the transaction ends.
pub(super) async fn lock(work: &mut Work<'_>, schema: &str) -> Result<(), StoreError> {
    let sql = "select pg_advisory_xact_lock(hashtextextended($1, 4196))";
    work.run(sql, Parameters::new().and(format!("projector {schema}"))).await.map(drop)
}

async fn make_schema(store: &PostgresStore, work: &mut Work<'_>, gaps: &mut Gaps) -> Result<(), StoreError> {
    let there = work
        .rows("select from pg_namespace where nspname = $1", Parameters::new().and(&*store.schema))
        .await?;
    if there.is_empty() {
        let sql = format!("create schema {}", quote(&store.schema));
        gaps.make(store, work, &format!("schema {} is missing", store.schema), &sql).await?;
        gaps.made().schema = true;
    }
    if let Some(row) = work.rows(MISSING_ROLE, Parameters::new().and(&*store.readers)).await?.first() {
        let role: String = get(row, 0)?;
        return Err(StoreError::Refused {
            problem: format!("`store.readers` names the role {role}, which the database does not have"),
            fix: "create the role or take it out of the list".to_owned(),
        });
    }
    let sql = "select r from unnest($1::text[]) as r cross join pg_namespace n \
               where n.nspname = $2 and not has_schema_privilege(r, n.oid, 'usage')";
    for row in work.rows(sql, Parameters::new().and(&*store.readers).and(&*store.schema)).await? {
        let role: String = get(&row, 0)?;
        let what = format!("role {role} may not use the schema");
        gaps.make(store, work, &what, &rights::grant_usage(&store.schema, &role)).await?;
    }
    Ok(())
}

/// Whether a projector has laid out this schema: it has the table that says so, with the columns that every layout has.
async fn is_laid_out(store: &PostgresStore, work: &mut Work<'_>) -> Result<bool, StoreError> {
    let layout = catalogue::relation(work, &store.schema, "projector_layout").await?;
    Ok(layout.is_some_and(|layout| {
        ["layout", "oldest_binary"]
            .iter()
            .all(|name| layout.columns.iter().any(|column| column.name == *name))
    }))
}

async fn refuse_newer(store: &PostgresStore, work: &mut Work<'_>) -> Result<(), StoreError> {
    if !is_laid_out(store, work).await? {
        return Ok(());
    }
    let rows =
        work.rows(&store.sql("select oldest_binary from {s}.projector_layout"), Parameters::new()).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let oldest: i32 = get(row, 0)?;
    if oldest <= LAYOUT {
        return Ok(());
    }
    Err(StoreError::Layout {
        problem: format!(
            "the tables in schema {} are those of a newer program: they need layout {oldest}, this program has {LAYOUT}",
            store.schema
        ),
        fix: "use the newer program, or another schema".to_owned(),
    })
}

async fn has_first_row(store: &PostgresStore, work: &mut Work<'_>) -> Result<bool, StoreError> {
    let sql = store.sql("select from {s}.projector_layout");
    Ok(!work.rows(&sql, Parameters::new()).await?.is_empty())
}

async fn make_status_view(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
) -> Result<(), StoreError> {
    let (schema, name) = (&store.schema, STATUS_VIEW.name);
    let create = in_schema(schema, STATUS_VIEW.create);
    let relation = catalogue::relation(work, schema, name).await?;
    let not_ours = |problem: String| {
        let error = StoreError::Layout { problem, fix: String::new() };
        admission::not_the_projectors(name, error, "another `store.schema`")
    };
    if relation.as_ref().is_some_and(|relation| relation.kind != "v") {
        return Err(not_ours("it is no view".to_owned()));
    }
    if store.ddl == DdlMode::Apply {
        // Refused where a view of that name has other columns.
        work.declared(&create).await?.map_err(|complaint| match sqlstate(&complaint.error) {
            Some("42P16") => not_ours(complaint.text()),
            _ => complaint.error,
        })?;
        work.script(&comment_on_status(schema)).await?;
    } else if relation.is_none() {
        gaps.make(store, work, &format!("view {name} is missing"), &create).await?;
    } else if gaps.is_empty() {
        // Where tables are missing, what should be there cannot be made for comparison.
        views::verify_fixed(store, work, gaps, &STATUS_VIEW).await?;
    }
    views::grant_readers(store, work, gaps, name).await
}
