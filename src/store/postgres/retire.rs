//! Retiring a version: everything of it is dropped, in one transaction.

use super::PostgresStore;
use super::catalogue;
use super::connections::Purpose;
use super::errors::bug;
use super::layout::lock;
use super::positions::{get, number};
use super::register::{declared_names, versions_in};
use super::schema::refused;
use super::views::refuse_dependents;
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
    let names = declared_names(store, work, version).await?;
    let mut views = Vec::new();
    // Before it is live a version has no views; one of that name is somebody else's.
    if row.state == VersionState::Live {
        for name in names.views {
            if catalogue::relation(work, &store.schema, &name).await?.is_some_and(|view| view.kind == "v") {
                views.push(name);
            }
        }
    }
    let mut counted = Vec::new();
    for name in names.tables {
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
    let left = match store.ddl {
        DdlMode::Apply => Vec::new(),
        DdlMode::Verify => drops(store, &views, &counted).into_iter().map(|(_, sql)| sql).collect(),
    };
    Ok(RetirePlan {
        version: row,
        views,
        tables: counted,
        left,
        dead_letters: get(counts, 0)?,
        open_dead_letters: get(counts, 1)?,
        in_use: get(counts, 2)?,
    })
}

fn of(version: &VersionKey) -> Parameters {
    Parameters::new().and(&*version.projection).and(number(version.version))
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
    let names: Vec<String> =
        plan.views.iter().chain(plan.tables.iter().map(|(name, _)| name)).cloned().collect();
    refuse_dependents(work, &store.schema, &names, &plan.version.key.to_string()).await?;
    for (what, sql) in drops(store, &plan.views, &plan.tables) {
        let dropped = work.attempt(&sql).await?;
        dropped.map_err(|error| {
            refused(&format!("the drop of the {what}s of {}", plan.version.key), &error.into())
        })?;
    }
    Ok(())
}

/// What is dropped, with the SQL: all views in one statement, so that they may read each other, and then what they read.
fn drops(store: &PostgresStore, views: &[String], tables: &[(String, i64)]) -> Vec<(&'static str, String)> {
    let sql = |what, names: Vec<&String>| {
        let names: Vec<String> =
            names.into_iter().map(|name| format!("{}.{}", quote(&store.schema), quote(name))).collect();
        (!names.is_empty()).then(|| (what, format!("drop {what} {}", names.join(", "))))
    };
    let tables = tables.iter().map(|(name, _)| name).collect();
    [sql("view", views.iter().collect()), sql("table", tables)].into_iter().flatten().collect()
}
