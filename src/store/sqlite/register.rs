//! Versions: registered with their tables, listed, and the first one promoted.

use sqlx::sqlite::SqliteRow;

use super::connections::{Connections, Parameters, Purpose, Work};
use super::errors::bug;
use super::layout::{self, NOW};
use super::positions::{get, version_key};
use super::schema::{self, Presence};
use super::views;
use crate::projection::Declaration;
use crate::store::admission::{self, Admission, Progress, Readiness};
use crate::store::sql::{self, DeclaredNames, declaration_json, quote};
use crate::store::{
    LogIdentity, Promotion, Registered, Registration, StoreError, VersionKey, VersionRow, VersionState,
};

pub(super) async fn register(
    connections: &Connections,
    registration: &Registration,
) -> Result<Registered, StoreError> {
    let mut work = Work::begin(connections, Purpose::Write, "register a version").await?;
    let mut made = Vec::new();
    let done = register_in(&mut work, registration, &mut made).await;
    let registered = work.end(done).await?;
    layout::tell(&made);
    Ok(registered)
}

async fn register_in(
    work: &mut Work<'_>,
    registration: &Registration,
    made: &mut Vec<String>,
) -> Result<Registered, StoreError> {
    let rows = versions_in(work, Some(&registration.declaration.name)).await?;
    match admission::admit(rows, registration)? {
        Admission::Known(row) => {
            known(work, &registration.declaration, &row).await?;
            Ok(Registered::Known)
        }
        Admission::New => {
            new(work, registration, made).await?;
            Ok(Registered::New)
        }
    }
}

/// Verifies a version that is there already, and brings up to date what may change without changing content.
async fn known(work: &mut Work<'_>, declaration: &Declaration, row: &VersionRow) -> Result<(), StoreError> {
    refuse_taken_names(work, declaration).await?;
    for table in &declaration.tables {
        let physical = table.physical_name(declaration.version);
        if super::catalogue::kind(work, &physical).await?.is_none() {
            return Err(admission::table_is_gone(&physical, declaration));
        }
        schema::make_table(work, table, declaration.version).await?;
    }
    if row.state == VersionState::Live {
        let before = declared_names(work, &row.key).await?.views;
        views::make_views(work, declaration, &before).await?;
    } else {
        views::try_views(work, declaration).await?;
    }
    let sql = "update projector_versions set text = ?3, declaration = ?4, staleness_limit_seconds = ?5 \
               where projection = ?1 and version = ?2";
    let parameters = of(declaration)
        .and(&*declaration.text)
        .and(declaration_json(declaration))
        .and(declaration.staleness.as_secs_f64());
    work.run(sql, parameters).await.map(drop)
}

fn of(declaration: &Declaration) -> Parameters {
    Parameters::new().and(&*declaration.name).and(i64::from(declaration.version))
}

async fn new(
    work: &mut Work<'_>,
    registration: &Registration,
    made: &mut Vec<String>,
) -> Result<(), StoreError> {
    let declaration = &*registration.declaration;
    refuse_taken_names(work, declaration).await?;
    for table in &declaration.tables {
        let physical = table.physical_name(declaration.version);
        let is_there = super::catalogue::kind(work, &physical).await?.is_some();
        let presence = schema::make_table(work, table, declaration.version).await;
        match presence {
            Ok(Presence::Made) => made.push(physical),
            Ok(Presence::Found) => refuse_rows(work, &physical).await?,
            Err(error) if is_there => return Err(admission::not_ours(&physical, error)),
            Err(error) => return Err(error),
        }
    }
    views::try_views(work, declaration).await?;
    insert(work, registration).await
}

/// Refuses tables and views of another projection's names.
async fn refuse_taken_names(work: &mut Work<'_>, declaration: &Declaration) -> Result<(), StoreError> {
    let sql = "select projection, version, declaration from projector_versions \
               where projection <> ?1 and state <> 'retired' order by projection, version";
    for row in work.rows(sql, Parameters::new().and(&*declaration.name)).await? {
        let taken = parsed(&get::<String>(&row, 2)?)?;
        let wanted = declaration
            .views
            .iter()
            .map(|view| view.name.clone())
            .chain(declaration.tables.iter().map(|table| table.physical_name(declaration.version)));
        let is_taken = |name: &String| {
            taken.views.iter().chain(&taken.tables).any(|other| other.eq_ignore_ascii_case(name))
        };
        if let Some(name) = wanted.into_iter().find(is_taken) {
            let owner = version_key(&row, 0)?;
            return Err(StoreError::Refused {
                problem: format!("{name} of {} is a name of {owner} already", declaration.label()),
                fix: "choose another name, or another file".to_owned(),
            });
        }
    }
    Ok(())
}

async fn refuse_rows(work: &mut Work<'_>, physical: &str) -> Result<(), StoreError> {
    let rows = work.rows_once(&format!("select 1 from {} limit 1", quote(physical))).await?;
    if rows.is_empty() { Ok(()) } else { Err(admission::rows_of_nobody(physical)) }
}

async fn insert(work: &mut Work<'_>, registration: &Registration) -> Result<(), StoreError> {
    let declaration = &*registration.declaration;
    let version = format!(
        "insert into projector_versions \
           (projection, version, state, text, digest, declaration, cluster_id, consumer_group, staleness_limit_seconds) \
         values (?1, ?2, 'building', ?3, ?4, ?5, ?6, ?7, ?8) \
         on conflict (projection, version) do update set state = excluded.state, text = excluded.text, \
           digest = excluded.digest, declaration = excluded.declaration, cluster_id = excluded.cluster_id, \
           consumer_group = excluded.consumer_group, staleness_limit_seconds = excluded.staleness_limit_seconds, \
           registered_at = {NOW}, promoted_at = null"
    );
    let parameters = of(declaration)
        .and(&*declaration.text)
        .and(&*declaration.digest)
        .and(declaration_json(declaration))
        .and(&*registration.log.cluster_id)
        .and(&*registration.log.consumer_group)
        .and(declaration.staleness.as_secs_f64());
    work.run(&version, parameters).await?;
    let position = "insert into projector_positions \
           (projection, version, topic, partition, position, epoch, start_position, boundary, topic_id) \
         values (?1, ?2, ?3, ?4, ?5, (select first_epoch from projector_layout), ?5, ?6, ?7)";
    for start in &registration.partitions {
        let parameters = of(declaration)
            .and(&*start.partition.topic)
            .and(start.partition.partition)
            .and(start.start.get())
            .and(start.boundary.get())
            .and(start.topic_id.as_deref());
        work.run(position, parameters).await?;
    }
    Ok(())
}

pub(super) async fn versions(connections: &Connections) -> Result<Vec<VersionRow>, StoreError> {
    let mut work = Work::begin(connections, Purpose::Read, "list the versions").await?;
    let rows = versions_in(&mut work, None).await;
    work.end(rows).await
}

pub(super) async fn versions_in(
    work: &mut Work<'_>,
    projection: Option<&str>,
) -> Result<Vec<VersionRow>, StoreError> {
    let sql = "select projection, version, state, text, digest, cluster_id, consumer_group from projector_versions \
               where ?1 is null or projection = ?1 order by projection, version";
    let rows = work.rows(sql, Parameters::new().and(projection)).await?;
    let version = |row: &SqliteRow| {
        Ok(VersionRow {
            key: version_key(row, 0)?,
            state: state(row, 2)?,
            text: get(row, 3)?,
            digest: get(row, 4)?,
            log: LogIdentity { cluster_id: get(row, 5)?, consumer_group: get(row, 6)? },
        })
    };
    rows.iter().map(version).collect()
}

/// The state of a version in a column of an answer.
pub(super) fn state(row: &SqliteRow, index: usize) -> Result<VersionState, StoreError> {
    sql::version_state(&get::<String>(row, index)?)
        .ok_or_else(|| bug("read a version", "a state of another name"))
}

/// What a registered version has made.
pub(super) async fn declared_names(
    work: &mut Work<'_>,
    version: &VersionKey,
) -> Result<DeclaredNames, StoreError> {
    let sql = "select declaration from projector_versions where projection = ?1 and version = ?2";
    let rows = work.rows(sql, super::positions::of(version)).await?;
    let row = rows.first().ok_or_else(|| bug("read a version", "the version was there"))?;
    parsed(&get::<String>(row, 0)?)
}

fn parsed(json: &str) -> Result<DeclaredNames, StoreError> {
    DeclaredNames::parse(json).ok_or_else(|| bug("read a version", "a declaration of another form"))
}

pub(super) async fn promote_first(
    connections: &Connections,
    declaration: &Declaration,
) -> Result<Promotion, StoreError> {
    // Asked for every second, and mostly in vain: a look first, which keeps nobody from writing.
    let mut look = Work::begin(connections, Purpose::Read, PROMOTE).await?;
    let seen = readiness(&mut look, declaration).await;
    match look.end(seen).await? {
        Readiness::Live => return Ok(Promotion::Live),
        Readiness::NotYet => return Ok(Promotion::NotYet),
        Readiness::Ready => {}
    }
    let mut work = Work::begin(connections, Purpose::Write, PROMOTE).await?;
    let promoted = promote_in(&mut work, declaration).await;
    work.end(promoted).await
}

const PROMOTE: &str = "promote a version";

async fn readiness(work: &mut Work<'_>, declaration: &Declaration) -> Result<Readiness, StoreError> {
    let sql = "select v.state, \
           exists (select 1 from projector_positions p \
             where p.projection = v.projection and p.version = v.version and p.position < p.boundary), \
           exists (select 1 from projector_versions o \
             where o.projection = v.projection and o.version <> v.version and o.state = 'live') \
         from projector_versions v where v.projection = ?1 and v.version = ?2 and v.state <> 'retired'";
    let rows = work.rows(sql, of(declaration)).await?;
    let Some(row) = rows.first() else { return Err(admission::not_registered(declaration)) };
    let progress = Progress {
        state: state(row, 0)?,
        is_behind: get::<i64>(row, 1)? != 0,
        other_is_live: get::<i64>(row, 2)? != 0,
    };
    Ok(progress.readiness())
}

async fn promote_in(work: &mut Work<'_>, declaration: &Declaration) -> Result<Promotion, StoreError> {
    match readiness(work, declaration).await? {
        Readiness::Live => return Ok(Promotion::Live),
        Readiness::NotYet => return Ok(Promotion::NotYet),
        Readiness::Ready => {}
    }
    // No view is ours yet: one that is there is somebody else's.
    refuse_taken_names(work, declaration).await?;
    views::make_views(work, declaration, &[]).await?;
    let sql = format!(
        "update projector_versions set state = 'live', promoted_at = {NOW} where projection = ?1 and version = ?2"
    );
    work.run(&sql, of(declaration)).await?;
    Ok(Promotion::Live)
}
