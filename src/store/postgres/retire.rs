//! Retiring a version: everything of it is dropped, in one transaction.

use super::PostgresStore;
use super::catalogue;
use super::connections::Purpose;
use super::errors::bug;
use super::layout::lock;
use super::positions::{get, number};
use super::register::versions_in;
use super::schema::refused;
use super::work::{Parameters, Work};
use crate::config::settings::DdlMode;
use crate::store::sql::quote;
use crate::store::{RetirePlan, StoreError, VersionKey, VersionState};

const RETIRE: &str = "retire a version";

pub(super) async fn plan(store: &PostgresStore, version: &VersionKey) -> Result<RetirePlan, StoreError> {
    let mut work = Work::begin(&store.connections, Purpose::Other, RETIRE, store.write_limits()).await?;
    let plan = plan_in(store, &mut work, version).await;
    work.end(plan).await
}

async fn plan_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    version: &VersionKey,
) -> Result<RetirePlan, StoreError> {
    let rows = versions_in(store, work, Some(&version.projection)).await?;
    let Some(row) = rows.into_iter().find(|row| row.key == *version) else {
        return Err(StoreError::Refused {
            problem: format!("the store has no {version}"),
            fix: "`projector status` lists the versions that are there".to_owned(),
        });
    };
    let (tables, declared_views) = declared(store, work, version).await?;
    let mut views = Vec::new();
    // Before it is live a version has no views; one of that name is somebody else's.
    if row.state == VersionState::Live {
        for name in declared_views {
            if catalogue::relation(work, &store.schema, &name).await?.is_some_and(|view| view.kind == "v") {
                views.push(name);
            }
        }
    }
    let mut counted = Vec::new();
    for name in tables {
        if catalogue::relation(work, &store.schema, &name).await?.is_some() {
            let sql = format!("select count(*) from {}.{}", quote(&store.schema), quote(&name));
            let rows = work.rows(&sql, Parameters::new()).await?;
            let count = rows.first().map_or(Ok(0), |row| get(row, 0))?;
            counted.push((name, count));
        }
    }
    let sql = store.sql(
        "select (select count(*) from {s}.projector_dead_letters where projection = $1 and version = $2), \
           (select count(*) from {s}.projector_dead_letters where projection = $1 and version = $2 and state = 'open'), \
           exists (select from {s}.projector_positions p join {s}.projector_instances i on i.instance = p.owner \
             where p.projection = $1 and p.version = $2 and i.heartbeat_at >= now() - interval '10 seconds')",
    );
    let rows = work.rows(&sql, of(version)).await?;
    let counts = rows.first().ok_or_else(|| bug(RETIRE, "counts were asked for"))?;
    Ok(RetirePlan {
        version: row,
        views,
        tables: counted,
        dead_letters: get(counts, 0)?,
        open_dead_letters: get(counts, 1)?,
        in_use: get(counts, 2)?,
    })
}

fn of(version: &VersionKey) -> Parameters {
    Parameters::new().and(&*version.projection).and(number(version.version))
}

/// Physical tables and views of a version, as its declaration in the store names them.
async fn declared(
    store: &PostgresStore,
    work: &mut Work<'_>,
    version: &VersionKey,
) -> Result<(Vec<String>, Vec<String>), StoreError> {
    let sql = store.sql(
        "select array(select jsonb_array_elements(declaration::jsonb -> 'tables') ->> 'physical'), \
           array(select jsonb_array_elements_text(declaration::jsonb -> 'views')) \
         from {s}.projector_versions where projection = $1 and version = $2",
    );
    let rows = work.rows(&sql, of(version)).await?;
    let row = rows.first().ok_or_else(|| bug(RETIRE, "the version was there"))?;
    Ok((get(row, 0)?, get(row, 1)?))
}

pub(super) async fn retire(store: &PostgresStore, version: &VersionKey) -> Result<RetirePlan, StoreError> {
    let connections = store.ddl_connections();
    let mut work = Work::begin(connections, Purpose::Other, RETIRE, store.ddl_limits()).await?;
    let done = retire_in(store, &mut work, version).await;
    let plan = work.end(done).await?;
    store.statements.forget();
    Ok(plan)
}

async fn retire_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    version: &VersionKey,
) -> Result<RetirePlan, StoreError> {
    lock(work, &store.schema).await?;
    // Held to the end, so that no claim makes a position meanwhile.
    let hold =
        store.sql("select from {s}.projector_versions where projection = $1 and version = $2 for update");
    work.run(&hold, of(version)).await?;
    let plan = plan_in(store, work, version).await?;
    if store.ddl == DdlMode::Apply {
        drop_relations(store, work, &plan).await?;
    }
    // Whoever is registered next begins above every epoch of this one: no owner of now can hold a fence of then.
    let epochs = store.sql(
        "update {s}.projector_layout set first_epoch = greatest(first_epoch, (select max(epoch) + 1 \
           from {s}.projector_positions where projection = $1 and version = $2))",
    );
    work.run(&epochs, of(version)).await?;
    // In the order of an apply, tables first: so that neither waits for what the other holds.
    for table in ["dead_letters", "positions", "observations", "sequences", "versions"] {
        let sql =
            store.sql(&format!("delete from {{s}}.projector_{table} where projection = $1 and version = $2"));
        work.run(&sql, of(version)).await?;
    }
    Ok(plan)
}

async fn drop_relations(
    store: &PostgresStore,
    work: &mut Work<'_>,
    plan: &RetirePlan,
) -> Result<(), StoreError> {
    let schema = quote(&store.schema);
    let views: Vec<String> = plan.views.iter().map(|name| format!("{schema}.{}", quote(name))).collect();
    let tables: Vec<String> =
        plan.tables.iter().map(|(name, _)| format!("{schema}.{}", quote(name))).collect();
    for (what, names) in [("view", views), ("table", tables)] {
        if names.is_empty() {
            continue;
        }
        let sql = format!("drop {what} {}", names.join(", "));
        work.attempt(&sql).await?.map_err(|error| match super::errors::sqlstate(&error) {
            Some("2BP01") => StoreError::Refused {
                problem: format!(
                    "{} cannot be dropped: other objects depend on a {what} of it",
                    plan.version.key
                ),
                fix: "drop them first; `drop view` or `drop table` by hand lists them".to_owned(),
            },
            _ => refused(&format!("the {what}s of {}", plan.version.key), error),
        })?;
    }
    Ok(())
}
