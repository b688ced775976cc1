//! Versions: registered, promoted, retired.

use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row};

use super::connection::{Verdict, execute};
use super::ddl::{self, quote};
use super::errors::own;
use super::layout::NOW;
use crate::projection::Declaration;
use crate::store::{
    LogIdentity, Promotion, Registered, Registration, RetirePlan, StoreError, VersionKey, VersionRow,
    VersionState,
};

/// What a version consists of: kept with it, so that it can be retired when its file is gone.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    tables: Vec<String>,
    views: Vec<String>,
}

impl Kept {
    fn of(declaration: &Declaration) -> Self {
        Self {
            tables: declaration.tables.iter().map(|table| table.physical_name(declaration.version)).collect(),
            views: declaration.views.iter().map(|view| view.name.clone()).collect(),
        }
    }
}

pub(super) async fn versions(connection: &mut SqliteConnection) -> Result<Vec<VersionRow>, StoreError> {
    let sql = "select projection, version, state, text, digest, cluster_id, consumer_group from projector_versions \
               order by projection, version";
    let rows = sqlx::query(sql).fetch_all(connection).await.map_err(own("read the versions"))?;
    rows.iter()
        .map(|row| {
            Ok(VersionRow {
                key: key_of(row)?,
                state: state_of(row.get(2))?,
                text: row.get(3),
                digest: row.get(4),
                log: LogIdentity { cluster_id: row.get(5), consumer_group: row.get(6) },
            })
        })
        .collect()
}

pub(super) fn key_of(row: &sqlx::sqlite::SqliteRow) -> Result<VersionKey, StoreError> {
    let version: i64 = row.get(1);
    let version = u32::try_from(version).map_err(|_| StoreError::Bug {
        action: "read a version",
        detail: "its number is out of range".to_owned(),
    })?;
    Ok(VersionKey { projection: row.get::<String, _>(0).into(), version })
}

pub(super) fn state_of(text: &str) -> Result<VersionState, StoreError> {
    [VersionState::Building, VersionState::CaughtUp, VersionState::Live, VersionState::Retired]
        .into_iter()
        .find(|state| state.as_str() == text)
        .ok_or_else(|| StoreError::Bug {
            action: "read a version",
            detail: "its state is not known".to_owned(),
        })
}

pub(super) async fn register(
    connection: &mut SqliteConnection,
    registration: &Registration,
) -> Result<Verdict<Registered>, StoreError> {
    let declaration = &registration.declaration;
    let known = versions(connection).await?;
    let ours = known.iter().find(|row| {
        row.key.projection.as_ref() == declaration.name && row.key.version == declaration.version
    });
    if let Some(row) = ours {
        check_known(row, registration)?;
        for table in &declaration.tables {
            ddl::verify(connection, table, declaration.version).await?;
        }
        for statement in ddl::tables(declaration)?.iter().filter(|sql| !sql.starts_with("create table")) {
            execute(connection, "make an index", statement).await?;
        }
        if row.state == VersionState::Live {
            refresh_views(connection, declaration).await?;
        }
        return Ok(Verdict::Commit(Registered::Known));
    }
    if let Some(other) = known.iter().find(|row| row.key.projection.as_ref() == declaration.name) {
        return Err(StoreError::Refused {
            problem: format!(
                "{} is registered, and versions beside each other are not in this release",
                other.key
            ),
            fix: format!(
                "`projector retire {} --execute` drops it, so that {} can be built",
                other.key,
                declaration.label()
            ),
        });
    }
    refuse_taken_names(connection, declaration).await?;
    for statement in ddl::tables(declaration)? {
        execute(connection, "make a table", &statement).await?;
    }
    insert(connection, registration).await?;
    Ok(Verdict::Commit(Registered::New))
}

fn check_known(row: &VersionRow, registration: &Registration) -> Result<(), StoreError> {
    let declaration = &registration.declaration;
    if row.digest != declaration.digest {
        return Err(StoreError::Refused {
            problem: format!("the mapping of {} has changed since it was registered", row.key),
            fix: format!(
                "take the change back, or start over: `projector retire {} --execute` drops the version, and the next run \
                 builds it anew",
                row.key
            ),
        });
    }
    if row.log != registration.log {
        return Err(StoreError::Refused {
            problem: format!(
                "the positions of {} belong to group {} of cluster {}, not to group {} of cluster {}",
                row.key,
                row.log.consumer_group,
                row.log.cluster_id,
                registration.log.consumer_group,
                registration.log.cluster_id
            ),
            fix: format!(
                "correct `kafka` in projector.yaml, or `projector retire {} --execute` to start over",
                row.key
            ),
        });
    }
    Ok(())
}

/// A table or view of somebody else is never touched.
async fn refuse_taken_names(
    connection: &mut SqliteConnection,
    declaration: &Declaration,
) -> Result<(), StoreError> {
    let kept = Kept::of(declaration);
    for name in kept.tables.iter().chain(&kept.views) {
        let taken: Option<(String,)> = sqlx::query_as("select type from sqlite_master where name = ?")
            .bind(name)
            .fetch_optional(&mut *connection)
            .await
            .map_err(own("look for names"))?;
        if let Some((kind,)) = taken {
            return Err(StoreError::Refused {
                problem: format!(
                    "a {kind} called {name} is there already, and is not of {}",
                    declaration.label()
                ),
                fix: "give the table or view of the projection another name".to_owned(),
            });
        }
    }
    Ok(())
}

async fn insert(connection: &mut SqliteConnection, registration: &Registration) -> Result<(), StoreError> {
    let action = "register a version";
    let declaration = &registration.declaration;
    let kept = serde_json::to_string(&Kept::of(declaration))
        .map_err(|error| StoreError::Bug { action, detail: error.to_string() })?;
    sqlx::query(
        "insert into projector_versions (projection, version, state, text, digest, declaration, cluster_id, \
         consumer_group, staleness_limit_seconds) values (?, ?, 'building', ?, ?, ?, ?, ?, ?)",
    )
    .bind(&declaration.name)
    .bind(declaration.version)
    .bind(&declaration.text)
    .bind(&declaration.digest)
    .bind(kept)
    .bind(&registration.log.cluster_id)
    .bind(&registration.log.consumer_group)
    .bind(declaration.staleness.as_secs_f64())
    .execute(&mut *connection)
    .await
    .map_err(own(action))?;
    for start in &registration.partitions {
        // An epoch that was never used: an owner from before a retire must not fit by chance.
        let sql = format!(
            "insert into projector_positions (projection, version, topic, partition, position, epoch, start_position, \
             boundary, topic_id) values (?1, ?2, ?3, ?4, ?5, {NOW} / 1000, ?5, ?6, ?7)"
        );
        sqlx::query(AssertSqlSafe(sql))
            .bind(&declaration.name)
            .bind(declaration.version)
            .bind(&*start.partition.topic)
            .bind(start.partition.partition)
            .bind(start.start.get())
            .bind(start.boundary.get())
            .bind(&start.topic_id)
            .execute(&mut *connection)
            .await
            .map_err(own(action))?;
    }
    Ok(())
}

/// Views may change under one version: they are made again.
async fn refresh_views(
    connection: &mut SqliteConnection,
    declaration: &Declaration,
) -> Result<(), StoreError> {
    let old = kept(connection, &declaration.name, declaration.version).await?;
    for view in &old.views {
        execute(connection, "drop a view", &format!("drop view if exists {}", quote(view))).await?;
    }
    for statement in ddl::views(declaration) {
        execute(connection, "make a view", &statement).await?;
    }
    let action = "keep the names of views";
    let kept = serde_json::to_string(&Kept::of(declaration))
        .map_err(|error| StoreError::Bug { action, detail: error.to_string() })?;
    sqlx::query("update projector_versions set declaration = ? where projection = ? and version = ?")
        .bind(kept)
        .bind(&declaration.name)
        .bind(declaration.version)
        .execute(connection)
        .await
        .map(drop)
        .map_err(own(action))
}

async fn kept(connection: &mut SqliteConnection, projection: &str, version: u32) -> Result<Kept, StoreError> {
    let action = "read a version";
    let text: Option<(String,)> =
        sqlx::query_as("select declaration from projector_versions where projection = ? and version = ?")
            .bind(projection)
            .bind(version)
            .fetch_optional(connection)
            .await
            .map_err(own(action))?;
    let Some((text,)) = text else {
        return Err(not_registered(projection, version));
    };
    serde_json::from_str(&text).map_err(|error| StoreError::Bug { action, detail: error.to_string() })
}

fn not_registered(projection: &str, version: u32) -> StoreError {
    StoreError::Refused {
        problem: format!("{projection}@{version} is not registered"),
        fix: "`projector status` lists what is".to_owned(),
    }
}

pub(super) async fn promote_first(
    connection: &mut SqliteConnection,
    declaration: &Declaration,
) -> Result<Verdict<Promotion>, StoreError> {
    let action = "promote the first version";
    let known = versions(connection).await?;
    let of_projection: Vec<&VersionRow> =
        known.iter().filter(|row| row.key.projection.as_ref() == declaration.name).collect();
    let Some(ours) = of_projection.iter().find(|row| row.key.version == declaration.version) else {
        return Ok(Verdict::RollBack(Promotion::NotYet));
    };
    if ours.state == VersionState::Live {
        return Ok(Verdict::RollBack(Promotion::Live));
    }
    if of_projection.iter().any(|row| row.state == VersionState::Live) {
        return Ok(Verdict::RollBack(Promotion::NotYet));
    }
    let behind: (i64,) = sqlx::query_as(
        "select count(*) from projector_positions where projection = ? and version = ? and position < boundary",
    )
    .bind(&declaration.name)
    .bind(declaration.version)
    .fetch_one(&mut *connection)
    .await
    .map_err(own(action))?;
    if behind.0 > 0 {
        return Ok(Verdict::RollBack(Promotion::NotYet));
    }
    refresh_views(connection, declaration).await?;
    let sql = format!(
        "update projector_versions set state = 'live', promoted_at = {NOW} where projection = ? and version = ?"
    );
    sqlx::query(AssertSqlSafe(sql))
        .bind(&declaration.name)
        .bind(declaration.version)
        .execute(connection)
        .await
        .map_err(own(action))?;
    Ok(Verdict::Commit(Promotion::Live))
}

pub(super) async fn retire_plan(
    connection: &mut SqliteConnection,
    version: &VersionKey,
) -> Result<RetirePlan, StoreError> {
    let action = "plan to retire a version";
    let known = versions(connection).await?;
    let Some(row) = known.into_iter().find(|row| row.key == *version) else {
        return Err(not_registered(&version.projection, version.version));
    };
    let kept = kept(connection, &version.projection, version.version).await?;
    let mut tables = Vec::new();
    for table in kept.tables {
        let sql = format!("select count(*) from {}", quote(&table));
        let (count,): (i64,) =
            sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&mut *connection).await.unwrap_or((0,));
        tables.push((table, count));
    }
    let (dead_letters, open_dead_letters): (i64, i64) = sqlx::query_as(
        "select count(*), count(*) filter (where state = 'open') from projector_dead_letters \
         where projection = ? and version = ?",
    )
    .bind(&*version.projection)
    .bind(version.version)
    .fetch_one(&mut *connection)
    .await
    .map_err(own(action))?;
    let sql = format!(
        "select count(*) from projector_positions p join projector_instances i on i.instance = p.owner \
         where p.projection = ? and p.version = ? and {NOW} - i.heartbeat_at < 10000000"
    );
    let (owners,): (i64,) = sqlx::query_as(AssertSqlSafe(sql))
        .bind(&*version.projection)
        .bind(version.version)
        .fetch_one(connection)
        .await
        .map_err(own(action))?;
    let views = if row.state == VersionState::Live { kept.views } else { Vec::new() };
    Ok(RetirePlan { version: row, views, tables, dead_letters, open_dead_letters, in_use: owners > 0 })
}

pub(super) async fn retire(
    connection: &mut SqliteConnection,
    version: &VersionKey,
) -> Result<Verdict<RetirePlan>, StoreError> {
    let action = "retire a version";
    let plan = retire_plan(connection, version).await?;
    for view in &plan.views {
        execute(connection, action, &format!("drop view if exists {}", quote(view))).await?;
    }
    for (table, _) in plan.tables.iter().rev() {
        execute(connection, action, &format!("drop table if exists {}", quote(table))).await?;
    }
    for table in [
        "projector_observations",
        "projector_positions",
        "projector_dead_letters",
        "projector_sequences",
        "projector_versions",
    ] {
        sqlx::query(AssertSqlSafe(format!("delete from {table} where projection = ? and version = ?")))
            .bind(&*version.projection)
            .bind(version.version)
            .execute(&mut *connection)
            .await
            .map_err(own(action))?;
    }
    Ok(Verdict::Commit(plan))
}
