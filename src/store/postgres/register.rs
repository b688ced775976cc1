//! Versions: registered with their tables, listed, and the first one promoted.

use std::sync::Arc;

use super::PostgresStore;
use super::catalogue;
use super::connections::Purpose;
use super::errors::bug;
use super::gaps::Gaps;
use super::layout::lock;
use super::positions::{get, number};
use super::rights;
use super::schema::{self, Presence};
use super::views;
use super::work::{Parameters, Work};
use crate::config::settings::DdlMode;
use crate::projection::Declaration;
use crate::store::admission::{self, Admission, Progress, Readiness};
use crate::store::sql::{self, DeclaredNames, declaration_json, quote};
use crate::store::{
    LogIdentity, Promotion, Registered, Registration, StoreError, VersionKey, VersionRow, VersionState,
};

pub(super) async fn register(
    store: &PostgresStore,
    registration: &Registration,
) -> Result<Registered, StoreError> {
    let connections = store.ddl_connections();
    let mut work = Work::begin(connections, Purpose::Other, "register a version", store.ddl_limits()).await?;
    let mut gaps = Gaps::default();
    let done = register_in(store, &mut work, &mut gaps, registration).await;
    let made = gaps.made().clone();
    let done = done.and_then(|registered| gaps.into_result(store).map(|()| registered));
    let registered = work.end(done).await?;
    made.tell(store);
    store.statements.forget();
    Ok(registered)
}

async fn register_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    registration: &Registration,
) -> Result<Registered, StoreError> {
    lock(work, &store.schema).await?;
    let rows = versions_in(store, work, Some(&registration.declaration.name)).await?;
    match admission::admit(rows, registration)? {
        Admission::Known(row) => {
            known(store, work, gaps, &registration.declaration, &row).await?;
            Ok(Registered::Known)
        }
        Admission::New => {
            new(store, work, gaps, registration).await?;
            Ok(Registered::New)
        }
    }
}

/// Verifies a version that is there already, and brings up to date what may change without changing content.
async fn known(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    declaration: &Declaration,
    row: &VersionRow,
) -> Result<(), StoreError> {
    refuse_taken_names(store, work, declaration).await?;
    for table in &declaration.tables {
        let physical = table.physical_name(declaration.version);
        if catalogue::relation(work, &store.schema, &physical).await?.is_none() {
            return Err(admission::table_is_gone(&physical, declaration));
        }
        schema::make_table(store, work, gaps, table, declaration.version).await?;
    }
    if row.state == VersionState::Live {
        let before = declared_names(store, work, &row.key).await?.views;
        views::make_views(store, work, gaps, declaration, &before).await?;
    } else if store.ddl == DdlMode::Apply || readiness(store, work, declaration).await? != Readiness::Ready {
        views::try_views(store, work, declaration).await?;
    }
    let sql = store.sql(
        "update {s}.projector_versions set text = $3, declaration = $4, staleness_limit_seconds = $5 \
         where projection = $1 and version = $2",
    );
    let parameters = Parameters::new()
        .and(&*declaration.name)
        .and(number(declaration.version))
        .and(&*declaration.text)
        .and(declaration_json(declaration))
        .and(declaration.staleness.as_secs_f64());
    work.run(&sql, parameters).await.map(drop)
}

async fn new(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    registration: &Registration,
) -> Result<(), StoreError> {
    let declaration = &*registration.declaration;
    refuse_taken_names(store, work, declaration).await?;
    for table in &declaration.tables {
        let physical = table.physical_name(declaration.version);
        let is_there = catalogue::relation(work, &store.schema, &physical).await?.is_some();
        let presence =
            schema::make_table(store, work, gaps, table, declaration.version).await.map_err(|error| {
                // Where somebody else makes tables, it was made for this version.
                if is_there && store.ddl == DdlMode::Apply {
                    admission::not_ours(&physical, error)
                } else {
                    error
                }
            })?;
        if presence == Presence::Found {
            refuse_rows(store, work, &physical).await?;
        }
    }
    if store.ddl == DdlMode::Apply {
        rights::grant_tables(store, work, &schema::physical_names(declaration)).await?;
    }
    // A view cannot be tried where its tables are missing.
    if gaps.is_empty() {
        views::try_views(store, work, declaration).await?;
    }
    insert(store, work, registration).await
}

/// Refuses tables and views of another projection's names.
async fn refuse_taken_names(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declaration: &Declaration,
) -> Result<(), StoreError> {
    let mut names: Vec<String> = declaration.views.iter().map(|view| view.name.clone()).collect();
    names.extend(declaration.tables.iter().map(|table| table.physical_name(declaration.version)));
    let sql = store.sql(
        "select v.projection, v.version, taken.name from {s}.projector_versions v \
         cross join lateral (select jsonb_array_elements_text(v.declaration::jsonb -> 'views') \
           union all select jsonb_array_elements(v.declaration::jsonb -> 'tables') ->> 'physical') as taken(name) \
         where v.projection <> $1 and v.state <> 'retired' and taken.name = any($2) limit 1",
    );
    let rows = work.rows(&sql, Parameters::new().and(&*declaration.name).and(names)).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (projection, version, name): (String, i32, String) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
    Err(StoreError::Refused {
        problem: format!("{name} of {} is a name of {projection}@{version} already", declaration.label()),
        fix: "choose another name, or another `store.schema`".to_owned(),
    })
}

async fn refuse_rows(store: &PostgresStore, work: &mut Work<'_>, physical: &str) -> Result<(), StoreError> {
    let table = format!("{}.{}", quote(&store.schema), quote(physical));
    let rows = work.rows(&format!("select from {table} limit 1"), Parameters::new()).await?;
    if rows.is_empty() { Ok(()) } else { Err(admission::rows_of_nobody(physical)) }
}

async fn insert(
    store: &PostgresStore,
    work: &mut Work<'_>,
    registration: &Registration,
) -> Result<(), StoreError> {
    let declaration = &*registration.declaration;
    let version = store.sql(
        "insert into {s}.projector_versions \
           (projection, version, state, text, digest, declaration, cluster_id, consumer_group, staleness_limit_seconds) \
         values ($1, $2, 'building', $3, $4, $5, $6, $7, $8) \
         on conflict (projection, version) do update set state = excluded.state, text = excluded.text, \
           digest = excluded.digest, declaration = excluded.declaration, cluster_id = excluded.cluster_id, \
           consumer_group = excluded.consumer_group, staleness_limit_seconds = excluded.staleness_limit_seconds, \
           registered_at = now(), promoted_at = null",
    );
    let parameters = Parameters::new()
        .and(&*declaration.name)
        .and(number(declaration.version))
        .and(&*declaration.text)
        .and(&*declaration.digest)
        .and(declaration_json(declaration))
        .and(&*registration.log.cluster_id)
        .and(&*registration.log.consumer_group)
        .and(declaration.staleness.as_secs_f64());
    work.run(&version, parameters).await?;
    let positions = store.sql(
        "insert into {s}.projector_positions \
           (projection, version, topic, partition, position, epoch, start_position, boundary, topic_id) \
         select $1, $2, topic, partition, start, (select first_epoch from {s}.projector_layout), start, boundary, topic_id \
         from unnest($3::text[], $4::int4[], $5::int8[], $6::int8[], $7::text[]) \
              as a(topic, partition, start, boundary, topic_id)",
    );
    let partitions = &registration.partitions;
    let parameters = Parameters::new()
        .and(&*declaration.name)
        .and(number(declaration.version))
        .and(partitions.iter().map(|start| start.partition.topic.to_string()).collect::<Vec<_>>())
        .and(partitions.iter().map(|start| start.partition.partition).collect::<Vec<_>>())
        .and(partitions.iter().map(|start| start.start.get()).collect::<Vec<_>>())
        .and(partitions.iter().map(|start| start.boundary.get()).collect::<Vec<_>>())
        .and(partitions.iter().map(|start| start.topic_id.clone()).collect::<Vec<_>>());
    work.run(&positions, parameters).await.map(drop)
}

pub(super) async fn versions(store: &PostgresStore) -> Result<Vec<VersionRow>, StoreError> {
    let mut work =
        Work::begin(&store.connections, Purpose::Other, "list the versions", store.write_limits()).await?;
    let rows = versions_in(store, &mut work, None).await;
    work.end(rows).await
}

pub(super) async fn versions_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    projection: Option<&str>,
) -> Result<Vec<VersionRow>, StoreError> {
    let sql = store.sql(
        "select projection, version, state, text, digest, cluster_id, consumer_group from {s}.projector_versions \
         where $1::text is null or projection = $1 order by projection, version",
    );
    let rows = work.rows(&sql, Parameters::new().and(projection)).await?;
    let version = |row| {
        Ok(VersionRow {
            key: version_key(row, 0)?,
            state: state(&get::<String>(row, 2)?)?,
            text: get(row, 3)?,
            digest: get(row, 4)?,
            log: LogIdentity { cluster_id: get(row, 5)?, consumer_group: get(row, 6)? },
        })
    };
    rows.iter().map(version).collect()
}

/// Projection and version from two columns, beginning at `index`.
pub(super) fn version_key(row: &sqlx::postgres::PgRow, index: usize) -> Result<VersionKey, StoreError> {
    let (projection, version): (String, i32) = (get(row, index)?, get(row, index + 1)?);
    Ok(VersionKey { projection: Arc::from(projection), version: version.unsigned_abs() })
}

/// A state by its name.
pub(super) fn state(name: &str) -> Result<VersionState, StoreError> {
    sql::version_state(name).ok_or_else(|| bug("read a version", format!("its state is {name}")))
}

/// What a registered version has made.
pub(super) async fn declared_names(
    store: &PostgresStore,
    work: &mut Work<'_>,
    version: &VersionKey,
) -> Result<DeclaredNames, StoreError> {
    let sql =
        store.sql("select declaration from {s}.projector_versions where projection = $1 and version = $2");
    let parameters = Parameters::new().and(&*version.projection).and(number(version.version));
    let rows = work.rows(&sql, parameters).await?;
    let row = rows.first().ok_or_else(|| bug("read a version", "the version was there"))?;
    DeclaredNames::parse(&get::<String>(row, 0)?)
        .ok_or_else(|| bug("read a version", "a declaration of another form"))
}

pub(super) async fn promote_first(
    store: &PostgresStore,
    declaration: &Declaration,
) -> Result<Promotion, StoreError> {
    // Asked once a second while a version is built: first without the lock.
    let mut look = Work::begin(&store.connections, Purpose::Other, PROMOTE, store.write_limits()).await?;
    let seen = readiness(store, &mut look, declaration).await;
    match look.end(seen).await? {
        Readiness::Live => return Ok(Promotion::Live),
        Readiness::NotYet => return Ok(Promotion::NotYet),
        Readiness::Ready => {}
    }
    let connections = store.ddl_connections();
    let mut work = Work::begin(connections, Purpose::Other, PROMOTE, store.ddl_limits()).await?;
    let promoted = promote_in(store, &mut work, declaration).await;
    work.end(promoted).await
}

const PROMOTE: &str = "promote a version";

async fn readiness(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declaration: &Declaration,
) -> Result<Readiness, StoreError> {
    let sql = store.sql(
        "select v.state, \
           exists (select from {s}.projector_positions p \
             where p.projection = v.projection and p.version = v.version and p.position < p.boundary), \
           exists (select from {s}.projector_versions o \
             where o.projection = v.projection and o.version <> v.version and o.state = 'live') \
         from {s}.projector_versions v where v.projection = $1 and v.version = $2 and v.state <> 'retired'",
    );
    let parameters = Parameters::new().and(&*declaration.name).and(number(declaration.version));
    let rows = work.rows(&sql, parameters).await?;
    let Some(row) = rows.first() else { return Err(admission::not_registered(declaration)) };
    let progress = Progress {
        state: state(&get::<String>(row, 0)?)?,
        is_behind: get(row, 1)?,
        other_is_live: get(row, 2)?,
    };
    Ok(progress.readiness())
}

async fn promote_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declaration: &Declaration,
) -> Result<Promotion, StoreError> {
    lock(work, &store.schema).await?;
    match readiness(store, work, declaration).await? {
        Readiness::Live => return Ok(Promotion::Live),
        Readiness::NotYet => return Ok(Promotion::NotYet),
        Readiness::Ready => {}
    }
    // No view is ours yet. Where somebody else makes them, one that is as declared is.
    let mut gaps = Gaps::default();
    views::make_views(store, work, &mut gaps, declaration, &[]).await?;
    gaps.into_promotion(store, &declaration.name)?;
    let sql = store.sql(
        "update {s}.projector_versions set state = 'live', promoted_at = now() where projection = $1 and version = $2",
    );
    let parameters = Parameters::new().and(&*declaration.name).and(number(declaration.version));
    work.run(&sql, parameters).await?;
    Ok(Promotion::Live)
}
