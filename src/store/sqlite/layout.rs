//! The projector's own tables: their DDL, and whether what is there is what should be.

use super::catalogue::{self, Fact};
use super::connections::{Connections, Parameters, Purpose, Work};
use super::positions::get;
use crate::store::StoreError;
use crate::store::admission;
use crate::store::sql::quote;

/// The number of this layout.
const LAYOUT: i64 = 1;
/// The oldest layout number whose program may use these tables.
const OLDEST_BINARY: i64 = 1;

/// Microseconds since 1970-01-01 UTC, by the clock of SQLite, which is that of the machine. Also for readers whose SQLite is
/// older than the functions that would say it shorter.
pub(super) const NOW: &str = "(cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)";

/// How the tables are made. `{now}` stands for [`NOW`].
const TABLES: &[(&str, &str)] = &[
    (
        "projector_layout",
        "\
create table projector_layout (
  one            INTEGER not null primary key default 1 check (one = 1),
  layout         INTEGER not null,
  oldest_binary  INTEGER not null,
  first_epoch    INTEGER not null default 0
) strict",
    ),
    (
        "projector_versions",
        "\
create table projector_versions (
  projection      TEXT    not null,
  version         INTEGER not null,
  state           TEXT    not null check (state in ('building', 'caught_up', 'live', 'retired')),
  text            TEXT    not null,
  digest          TEXT    not null,
  declaration     TEXT    not null,
  cluster_id      TEXT    not null,
  consumer_group  TEXT    not null,
  staleness_limit_seconds REAL not null,
  registered_at   INTEGER not null default {now},
  promoted_at     INTEGER,
  primary key (projection, version)
) strict",
    ),
    (
        "projector_positions",
        "\
create table projector_positions (
  projection      TEXT    not null,
  version         INTEGER not null,
  topic           TEXT    not null,
  partition       INTEGER not null,
  position        INTEGER not null,
  epoch           INTEGER not null default 0,
  revision        INTEGER not null default 0,
  start_position  INTEGER not null,
  boundary        INTEGER not null,
  topic_id        TEXT,
  leader_epoch    INTEGER,
  owner           TEXT,
  quarantine_reason TEXT,
  quarantine_detail TEXT,
  quarantined_at  INTEGER,
  request         TEXT check (request in ('resume', 'resume_with_dead_letter')),
  updated_at      INTEGER not null default {now},
  primary key (projection, version, topic, partition),
  foreign key (projection, version) references projector_versions
) strict",
    ),
    (
        "projector_instances",
        "\
create table projector_instances (
  instance           TEXT    not null primary key,
  host               TEXT    not null,
  program_version    TEXT    not null,
  started_at         INTEGER not null default {now},
  heartbeat_at       INTEGER not null,
  broker_answered_at INTEGER
) strict",
    ),
    (
        "projector_observations",
        "\
create table projector_observations (
  projection         TEXT    not null,
  version            INTEGER not null,
  topic              TEXT    not null,
  partition          INTEGER not null,
  epoch              INTEGER not null,
  instance           TEXT    not null,
  readable_end       INTEGER,
  oldest_pending_at  INTEGER,
  blocked            TEXT,
  observed_at        INTEGER not null,
  primary key (projection, version, topic, partition)
) strict",
    ),
    (
        "projector_dead_letters",
        "\
create table projector_dead_letters (
  projection       TEXT    not null,
  version          INTEGER not null,
  topic            TEXT    not null,
  partition        INTEGER not null,
  topic_id         TEXT    not null default '',
  record_offset    INTEGER not null,
  key              BLOB,
  value            BLOB,
  headers          BLOB    not null,
  record_timestamp INTEGER,
  timestamp_type   TEXT    not null check (timestamp_type in ('create', 'log_append', 'absent')),
  stage            TEXT    not null,
  reason           TEXT    not null,
  detail           TEXT    not null,
  column_name      TEXT,
  constraint_name  TEXT,
  sqlstate         TEXT,
  schema_id        INTEGER,
  state            TEXT    not null default 'open' check (state in ('open', 'resolved', 'discarded', 'edited', 'parked')),
  created_at       INTEGER not null default {now},
  published_at     INTEGER,
  primary key (projection, version, topic, partition, topic_id, record_offset)
) strict",
    ),
    (
        "projector_sequences",
        "\
create table projector_sequences (
  projection TEXT    not null,
  version    INTEGER not null,
  topic      TEXT    not null,
  aggregate  BLOB    not null,
  sequence   TEXT    not null,
  primary key (projection, version, topic, aggregate)
) strict",
    ),
    (
        "projector_erasures",
        "\
create table projector_erasures (
  subject    TEXT    not null primary key,
  reason     TEXT,
  erased_at  INTEGER not null default {now}
) strict",
    ),
];

/// Names and statements of the tables' indexes.
const INDEXES: &[(&str, &str)] = &[
    (
        "projector_dead_letters_unpublished",
        "create index if not exists projector_dead_letters_unpublished on projector_dead_letters \
         (projection, version, topic, partition, record_offset) where published_at is null",
    ),
    (
        "projector_dead_letters_open",
        "create index if not exists projector_dead_letters_open on projector_dead_letters \
         (projection, version, topic, partition) where state = 'open'",
    ),
];

/// The state of each view of each projection. The rules are those of `status::rules`, by the clock of the machine.
const STATUS_VIEW: (&str, &str) = ("projector_view_status", include_str!("view_status.sql"));

fn with_now(sql: &str) -> String {
    sql.trim_end().replace("{now}", NOW)
}

/// All statements that make the projector's own tables, whatever of them is there already.
pub(super) fn ddl() -> Vec<String> {
    let if_missing = |create: &str| create.replacen("create table ", "create table if not exists ", 1);
    let mut statements: Vec<String> =
        TABLES.iter().map(|(_, create)| if_missing(&with_now(create))).collect();
    statements.extend(INDEXES.iter().map(|(_, create)| (*create).to_owned()));
    statements.push(format!(
        "insert into projector_layout (one, layout, oldest_binary) values (1, {LAYOUT}, {OLDEST_BINARY}) on conflict do nothing"
    ));
    statements.push(format!("drop view if exists {}", STATUS_VIEW.0));
    statements.push(with_now(STATUS_VIEW.1));
    statements
}

pub(super) async fn lay_out(connections: &Connections) -> Result<(), StoreError> {
    let mut work = Work::begin(connections, Purpose::Write, "lay out the store").await?;
    let done = lay_out_in(&mut work).await;
    tell(&work.end(done).await?);
    Ok(())
}

/// Tells which tables have been made.
pub(super) fn tell(made: &[String]) {
    if !made.is_empty() {
        tracing::info!("made tables: {}", made.join(", "));
    }
}

/// Whether a projector has laid out this database: it has the table that says so, with the columns that every layout has.
async fn is_laid_out(work: &mut Work<'_>) -> Result<bool, StoreError> {
    let facts = catalogue::facts(work, "projector_layout").await?;
    Ok(["layout", "oldest_binary"].iter().all(|name| facts.iter().any(|fact| fact.name == *name)))
}

async fn lay_out_in(work: &mut Work<'_>) -> Result<Vec<String>, StoreError> {
    let is_ours = is_laid_out(work).await?;
    if is_ours {
        refuse_newer(work).await?;
    }
    let mut made = Vec::new();
    let expected = Expected::ask().await?;
    for ((name, create), expected) in TABLES.iter().zip(&expected.tables) {
        if catalogue::kind(work, name).await?.is_none() {
            work.script(&with_now(create)).await?;
            made.push((*name).to_owned());
        } else {
            let mut found = verify(name, expected, &catalogue::facts(work, name).await?);
            if found.is_ok() && !catalogue::is_strict(work, name).await? {
                found = Err(differs(format!("table {name} is not strict")));
            }
            found.map_err(|error| if is_ours { error } else { not_ours(name, error) })?;
        }
    }
    for ((name, create), expected) in INDEXES.iter().zip(&expected.indexes) {
        work.script(create).await?;
        let found = catalogue::index(work, name).await?;
        if found != *expected {
            let text = |index: &Option<String>| index.clone().unwrap_or_else(|| "no index".to_owned());
            let (is, should) = (text(&found), text(expected));
            return Err(differs(format!("the index {name} is `{is}`; it should be `{should}`")));
        }
    }
    let first =
        "insert into projector_layout (one, layout, oldest_binary) values (1, ?1, ?2) on conflict do nothing";
    work.run(first, Parameters::new().and(LAYOUT).and(OLDEST_BINARY)).await?;
    if let Some(kind) = catalogue::kind(work, STATUS_VIEW.0).await?.filter(|kind| kind != "view") {
        return Err(not_ours(STATUS_VIEW.0, differs(format!("it is no view but a {kind}"))));
    }
    catalogue::make_view(work, STATUS_VIEW.0, &with_now(STATUS_VIEW.1)).await?;
    Ok(made)
}

fn not_ours(name: &str, error: StoreError) -> StoreError {
    admission::not_the_projectors(name, error, "another file in `store.url`")
}

/// What SQLite makes of the DDL: so that it is written down once.
struct Expected {
    tables: Vec<Vec<Fact>>,
    indexes: Vec<Option<String>>,
}

impl Expected {
    async fn ask() -> Result<Self, StoreError> {
        let scratch = Connections::in_memory();
        let mut work = Work::begin(&scratch, Purpose::Write, "lay out the store").await?;
        let (mut tables, mut indexes) = (Vec::new(), Vec::new());
        for (name, create) in TABLES {
            work.script(&with_now(create)).await?;
            tables.push(catalogue::facts(&mut work, name).await?);
        }
        for (name, create) in INDEXES {
            work.script(create).await?;
            indexes.push(catalogue::index(&mut work, name).await?);
        }
        work.commit().await?;
        scratch.close().await;
        Ok(Self { tables, indexes })
    }
}

async fn refuse_newer(work: &mut Work<'_>) -> Result<(), StoreError> {
    let rows = work.rows("select oldest_binary from projector_layout", Parameters::new()).await?;
    match rows.first().map(|row| get::<i64>(row, 0)).transpose()? {
        Some(oldest) if oldest > LAYOUT => Err(StoreError::Layout {
            problem: format!(
                "the tables of this database are those of a newer program: they need layout {oldest}, this program has {LAYOUT}"
            ),
            fix: "use the newer program, or another file".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn differs(problem: String) -> StoreError {
    StoreError::Layout {
        problem,
        fix: "put it back as `projector ddl` prints it, or move the file away and start over".to_owned(),
    }
}

fn verify(table: &str, expected: &[Fact], found: &[Fact]) -> Result<(), StoreError> {
    for fact in expected {
        let Some(other) = found.iter().find(|other| other.name == fact.name) else {
            return Err(differs(format!("table {table} has no column {}", fact.name)));
        };
        // The key as a whole is compared below.
        if (Fact { key: other.key, ..fact.clone() }) != *other {
            return Err(differs(format!("column {table}.{} is {other}; it should be {fact}", fact.name)));
        }
    }
    let (is, should) = (key(found), key(expected));
    if is != should {
        let problem = format!("the primary key of table {table} is ({is}); it should be ({should})");
        return Err(differs(problem));
    }
    let is_extra = |fact: &&Fact| !expected.iter().any(|other| other.name == fact.name);
    // A newer program may have added a column, where this one may still use its tables.
    match found.iter().filter(is_extra).find(|fact| fact.must_be_given()) {
        Some(extra) => {
            Err(differs(format!("table {table} has the column {}, which must be given", quote(&extra.name))))
        }
        None => Ok(()),
    }
}

/// The names of a primary key's columns, in its order.
fn key(facts: &[Fact]) -> String {
    let mut key: Vec<&Fact> = facts.iter().filter(|fact| fact.key > 0).collect();
    key.sort_by_key(|fact| fact.key);
    key.iter().map(|fact| fact.name.as_str()).collect::<Vec<_>>().join(", ")
}
