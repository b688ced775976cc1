//! Retiring a version: everything of it is dropped, in one transaction.

use super::catalogue;
use super::connections::{Connections, Purpose, Work};
use super::errors::{CONSTRAINT, bug};
use super::layout::NOW;
use super::positions::{get, of};
use super::register::{declared_names, versions_in};
use crate::store::sql::quote;
use crate::store::{DatabaseCode, RetirePlan, StoreError, VersionKey, VersionState};

const RETIRE: &str = "retire a version";

pub(super) async fn plan(connections: &Connections, version: &VersionKey) -> Result<RetirePlan, StoreError> {
    let mut work = Work::begin(connections, Purpose::Read, RETIRE).await?;
    let plan = plan_in(&mut work, version).await;
    work.end(plan).await
}

async fn plan_in(work: &mut Work<'_>, version: &VersionKey) -> Result<RetirePlan, StoreError> {
    let rows = versions_in(work, Some(&version.projection)).await?;
    let Some(row) = rows.into_iter().find(|row| row.key == *version) else {
        return Err(StoreError::Refused {
            problem: format!("the store has no {version}"),
            fix: "`projector status` lists the versions that are there".to_owned(),
        });
    };
    let names = declared_names(work, version).await?;
    let mut views = Vec::new();
    // Before it is live a version has no views; one of that name is somebody else's.
    if row.state == VersionState::Live {
        for name in names.views {
            if catalogue::kind(work, &name).await?.as_deref() == Some("view") {
                views.push(name);
            }
        }
    }
    let mut tables = Vec::new();
    for name in names.tables {
        if catalogue::kind(work, &name).await?.as_deref() == Some("table") {
            let rows = work.rows_once(&format!("select count(*) from {}", quote(&name))).await?;
            let count = rows.first().map_or(Ok(0), |row| get(row, 0))?;
            tables.push((name, count));
        }
    }
    let sql = format!(
        "select (select count(*) from projector_dead_letters where projection = ?1 and version = ?2), \
           (select count(*) from projector_dead_letters where projection = ?1 and version = ?2 and state = 'open'), \
           exists (select 1 from projector_positions p join projector_instances i on i.instance = p.owner \
             where p.projection = ?1 and p.version = ?2 and i.heartbeat_at >= {NOW} - 10000000)"
    );
    let rows = work.rows(&sql, of(version)).await?;
    let counts = rows.first().ok_or_else(|| bug(RETIRE, "counts were asked for"))?;
    Ok(RetirePlan {
        version: row,
        views,
        tables,
        dead_letters: get(counts, 0)?,
        open_dead_letters: get(counts, 1)?,
        in_use: get::<i64>(counts, 2)? != 0,
        left: Vec::new(),
    })
}

pub(super) async fn retire(
    connections: &Connections,
    version: &VersionKey,
) -> Result<RetirePlan, StoreError> {
    let mut work = Work::begin(connections, Purpose::Write, RETIRE).await?;
    let done = retire_in(&mut work, version).await;
    work.end(done).await
}

async fn retire_in(work: &mut Work<'_>, version: &VersionKey) -> Result<RetirePlan, StoreError> {
    let plan = plan_in(work, version).await?;
    for view in &plan.views {
        work.script(&format!("drop view {}", quote(view))).await?;
    }
    // Tables that refer to others were declared after them.
    for (table, _) in plan.tables.iter().rev() {
        work.script(&format!("drop table {}", quote(table))).await.map_err(|error| match error {
            StoreError::Database { code: DatabaseCode::Sqlite(code), .. } if code & 0xff == CONSTRAINT => {
                StoreError::Refused {
                    problem: format!("table {table} of {version} cannot be dropped: {error}"),
                    fix: "drop what refers to it first, such as foreign keys of other tables".to_owned(),
                }
            }
            other => other,
        })?;
    }
    // Whoever is registered next begins above every epoch of this one: no owner of now can hold a fence of then.
    let epochs = "update projector_layout set first_epoch = max(first_epoch, (select coalesce(max(epoch) + 1, 0) \
                  from projector_positions where projection = ?1 and version = ?2))";
    work.run(epochs, of(version)).await?;
    for table in ["dead_letters", "positions", "observations", "sequences", "versions"] {
        let sql = format!("delete from projector_{table} where projection = ?1 and version = ?2");
        work.run(&sql, of(version)).await?;
    }
    Ok(plan)
}
