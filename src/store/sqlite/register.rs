//! Versions: registered with their tables, listed, and the first one promoted.

use sqlx::sqlite::SqliteRow;

use super::connections::{Connections, Parameters, Purpose, Work};
use super::errors::bug;
use super::layout::NOW;
use super::positions::{get, version_key};
use super::schema::{self, Presence};
use crate::projection::Declaration;
use crate::store::sql::{self, DeclaredNames, declaration_json, quote};
use crate::store::{
    LogIdentity, Promotion, Registered, Registration, StoreError, VersionKey, VersionRow, VersionState,
};

pub(super) async fn register(
    connections: &Connections,
    registration: &Registration,
) -> Result<Registered, StoreError> {
    let mut work = Work::begin(connections, Purpose::Write, "register a version").await?;
    let done = register_in(&mut work, registration).await;
    work.end(done).await
}

async fn register_in(work: &mut Work<'_>, registration: &Registration) -> Result<Registered, StoreError> {
    let declaration = &*registration.declaration;
    let rows = versions_in(work, Some(&declaration.name)).await?;
    let mut served = rows.iter().filter(|row| row.state != VersionState::Retired);
    let label = declaration.label();
    match served.next() {
        Some(row) if row.key.version == declaration.version => {
            refuse_another(row, registration, &label)?;
            known(work, declaration, row).await?;
            Ok(Registered::Known)
        }
        Some(row) => Err(StoreError::Refused {
            problem: format!("{label} cannot be registered while the store has {}", row.key),
            fix: format!(
                "retire that first: `projector retire {} --execute` drops everything of it",
                row.key
            ),
        }),
        None => {
            new(work, registration).await?;
            Ok(Registered::New)
        }
    }
}

fn refuse_another(row: &VersionRow, registration: &Registration, label: &str) -> Result<(), StoreError> {
    let refused = |problem: String, fix: String| Err(StoreError::Refused { problem, fix });
    if row.digest != registration.declaration.digest {
        return refused(
            format!("{label} is registered with another mapping: its sources, tables or events have changed"),
            format!(
                "give the changed mapping a new version, or start over with `projector retire {label} --execute`"
            ),
        );
    }
    for (what, is, should) in [
        ("cluster", &row.log.cluster_id, &registration.log.cluster_id),
        ("consumer group", &row.log.consumer_group, &registration.log.consumer_group),
    ] {
        if is != should {
            return refused(
                format!("the positions of {label} belong to the {what} {is}, this process uses {should}"),
                format!(
                    "use the {what} of the store, or start over with `projector retire {label} --execute`"
                ),
            );
        }
    }
    Ok(())
}

/// Verifies a version that is there already, and adds what is new in its declaration without changing content.
async fn known(work: &mut Work<'_>, declaration: &Declaration, row: &VersionRow) -> Result<(), StoreError> {
    for table in &declaration.tables {
        let physical = table.physical_name(declaration.version);
        if super::catalogue::kind(work, &physical).await?.is_none() {
            return Err(StoreError::Layout {
                problem: format!("table {physical} of {} is gone", declaration.label()),
                fix: format!(
                    "restore it, or start over with `projector retire {} --execute`",
                    declaration.label()
                ),
            });
        }
        schema::make_table(work, table, declaration.version).await?;
    }
    if row.state == VersionState::Live {
        let before = declared_names(work, &row.key).await?.views;
        remake_views(work, declaration, &before).await?;
    } else {
        schema::try_views(work, declaration).await?;
    }
    let sql = "update projector_versions set text = ?3, declaration = ?4, staleness_limit_seconds = ?5 \
               where projection = ?1 and version = ?2";
    let parameters = of(declaration)
        .and(&*declaration.text)
        .and(declaration_json(declaration))
        .and(declaration.staleness.as_secs_f64());
    work.run(sql, parameters).await.map(drop)
}

/// Makes the views of a live version as they are declared now: new and changed ones, and none that is no longer declared.
async fn remake_views(
    work: &mut Work<'_>,
    declaration: &Declaration,
    before: &[String],
) -> Result<(), StoreError> {
    refuse_taken_names(work, declaration).await?;
    for name in before.iter().filter(|name| !declaration.views.iter().any(|view| view.name == **name)) {
        work.script(&format!("drop view if exists {}", quote(name))).await?;
    }
    for view in &declaration.views {
        let is_ours = before.contains(&view.name);
        if !is_ours && let Some(kind) = super::catalogue::kind(work, &view.name).await? {
            return Err(schema::taken(&view.name, &kind));
        }
        schema::make_view(work, declaration, view).await?;
    }
    Ok(())
}

fn of(declaration: &Declaration) -> Parameters {
    Parameters::new().and(&*declaration.name).and(i64::from(declaration.version))
}

async fn new(work: &mut Work<'_>, registration: &Registration) -> Result<(), StoreError> {
    let declaration = &*registration.declaration;
    refuse_taken_names(work, declaration).await?;
    for table in &declaration.tables {
        if schema::make_table(work, table, declaration.version).await? == Presence::Found {
            refuse_rows(work, &table.physical_name(declaration.version)).await?;
        }
    }
    schema::try_views(work, declaration).await?;
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

/// A table of a new version must be empty: its content is a function of the log alone (promise P0).
async fn refuse_rows(work: &mut Work<'_>, physical: &str) -> Result<(), StoreError> {
    let table = quote(physical);
    if work.rows_once(&format!("select 1 from {table} limit 1")).await?.is_empty() {
        return Ok(());
    }
    Err(StoreError::Refused {
        problem: format!(
            "table {physical} is there already and has rows that no registered version has written"
        ),
        fix: format!("look what they are; then `drop table {table}`, and start again"),
    })
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

/// How far a first version is.
enum Readiness {
    Live,
    NotYet,
    Ready,
}

async fn readiness(work: &mut Work<'_>, declaration: &Declaration) -> Result<Readiness, StoreError> {
    let sql = "select v.state, \
           exists (select 1 from projector_positions p \
             where p.projection = v.projection and p.version = v.version and p.position < p.boundary), \
           exists (select 1 from projector_versions o \
             where o.projection = v.projection and o.version <> v.version and o.state = 'live') \
         from projector_versions v where v.projection = ?1 and v.version = ?2 and v.state <> 'retired'";
    let rows = work.rows(sql, of(declaration)).await?;
    let Some(row) = rows.first() else {
        return Err(StoreError::Refused {
            problem: format!("{} is not registered", declaration.label()),
            fix: "start it with `projector run` first".to_owned(),
        });
    };
    let (behind, other_is_live): (i64, i64) = (get(row, 1)?, get(row, 2)?);
    Ok(match state(row, 0)? {
        VersionState::Live => Readiness::Live,
        _ if behind != 0 || other_is_live != 0 => Readiness::NotYet,
        _ => Readiness::Ready,
    })
}

async fn promote_in(work: &mut Work<'_>, declaration: &Declaration) -> Result<Promotion, StoreError> {
    match readiness(work, declaration).await? {
        Readiness::Live => return Ok(Promotion::Live),
        Readiness::NotYet => return Ok(Promotion::NotYet),
        Readiness::Ready => {}
    }
    // No view is ours yet: one that is there is somebody else's.
    remake_views(work, declaration, &[]).await?;
    let sql = format!(
        "update projector_versions set state = 'live', promoted_at = {NOW} where projection = ?1 and version = ?2"
    );
    work.run(&sql, of(declaration)).await?;
    Ok(Promotion::Live)
}
