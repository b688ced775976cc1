//! The projector's own tables: their DDL, and whether what is there is what should be.

use super::PostgresStore;
use super::catalogue::{self, Relation};
use super::connections::Purpose;
use super::positions::get;
use super::schema::grant_tables;
use super::types::quote_text;
use super::views::STATUS_VIEW;
use super::work::{Parameters, Work};
use crate::config::settings::DdlMode;
use crate::store::StoreError;
use crate::store::sql::quote;

/// The number of this layout.
pub(super) const LAYOUT: i32 = 1;
/// The oldest layout number whose program may use these tables.
const OLDEST_BINARY: i32 = 1;

/// A table of the projector. `{s}` stands for the schema.
struct OwnTable {
    name: &'static str,
    create: &'static str,
}

const TABLES: &[OwnTable] = &[
    OwnTable {
        name: "projector_layout",
        create: "\
create table {s}.projector_layout (
  one            boolean primary key default true check (one),
  layout         integer not null,
  oldest_binary  integer not null,
  first_epoch    bigint  not null default 0
)",
    },
    OwnTable {
        name: "projector_versions",
        create: "\
create table {s}.projector_versions (
  projection      text    not null,
  version         integer not null,
  state           text    not null check (state in ('building', 'caught_up', 'live', 'retired')),
  text            text    not null,
  digest          text    not null,
  declaration     text    not null,
  cluster_id      text    not null,
  consumer_group  text    not null,
  staleness_limit_seconds double precision not null,
  registered_at   timestamptz not null default now(),
  promoted_at     timestamptz,
  primary key (projection, version)
)",
    },
    OwnTable {
        name: "projector_positions",
        create: "\
create table {s}.projector_positions (
  projection      text    not null,
  version         integer not null,
  topic           text    not null,
  partition       integer not null,
  position        bigint  not null,
  epoch           bigint  not null default 0,
  revision        bigint  not null default 0,
  start_position  bigint  not null,
  boundary        bigint  not null,
  topic_id        text,
  leader_epoch    integer,
  owner           text,
  quarantine_reason text,
  quarantine_detail text,
  quarantined_at  timestamptz,
  request         text check (request in ('resume', 'resume_with_dead_letter')),
  updated_at      timestamptz not null default now(),
  primary key (projection, version, topic, partition),
  foreign key (projection, version) references {s}.projector_versions
)",
    },
    OwnTable {
        name: "projector_instances",
        create: "\
create table {s}.projector_instances (
  instance           text primary key,
  host               text not null,
  program_version    text not null,
  started_at         timestamptz not null default now(),
  heartbeat_at       timestamptz not null,
  broker_answered_at timestamptz
)",
    },
    OwnTable {
        name: "projector_observations",
        create: "\
create table {s}.projector_observations (
  projection         text    not null,
  version            integer not null,
  topic              text    not null,
  partition          integer not null,
  epoch              bigint  not null,
  instance           text    not null,
  readable_end       bigint,
  oldest_pending_at  timestamptz,
  blocked            text,
  observed_at        timestamptz not null,
  primary key (projection, version, topic, partition)
)",
    },
    OwnTable {
        name: "projector_dead_letters",
        create: "\
create table {s}.projector_dead_letters (
  projection       text    not null,
  version          integer not null,
  topic            text    not null,
  partition        integer not null,
  topic_id         text    not null default '',
  record_offset    bigint  not null,
  key              bytea,
  value            bytea,
  headers          bytea   not null,
  record_timestamp bigint,
  timestamp_type   text    not null check (timestamp_type in ('create', 'log_append', 'absent')),
  stage            text    not null,
  reason           text    not null,
  detail           text    not null,
  column_name      text,
  constraint_name  text,
  sqlstate         text,
  schema_id        bigint,
  state            text    not null default 'open' check (state in ('open', 'resolved', 'discarded', 'edited', 'parked')),
  created_at       timestamptz not null default now(),
  published_at     timestamptz,
  primary key (projection, version, topic, partition, topic_id, record_offset)
)",
    },
    OwnTable {
        name: "projector_sequences",
        create: "\
create table {s}.projector_sequences (
  projection text    not null,
  version    integer not null,
  topic      text    not null,
  aggregate  bytea   not null,
  sequence   numeric not null,
  primary key (projection, version, topic, aggregate)
)",
    },
    OwnTable {
        name: "projector_erasures",
        create: "\
create table {s}.projector_erasures (
  subject    text primary key,
  reason     text,
  erased_at  timestamptz not null default now()
)",
    },
];

/// Indexes of the projector's tables, by name.
const INDEXES: &[(&str, &str)] = &[
    (
        "projector_dead_letters_unpublished",
        "create index projector_dead_letters_unpublished on {s}.projector_dead_letters (projection, version, topic, partition, record_offset) where published_at is null",
    ),
    (
        "projector_dead_letters_open",
        "create index projector_dead_letters_open on {s}.projector_dead_letters (projection, version, topic, partition) where state = 'open'",
    ),
];

/// All statements that make the projector's own tables in an empty database.
pub(super) fn ddl(schema: &str, readers: &[String]) -> Vec<String> {
    let own = TABLES.iter().map(|table| table.create).chain(INDEXES.iter().map(|(_, create)| *create));
    let mut statements = vec![format!("create schema if not exists {}", quote(schema))];
    statements.extend(own.map(|create| in_schema(schema, create)));
    statements.push(first_row(schema));
    statements.push(in_schema(schema, STATUS_VIEW.create));
    statements.extend(readers.iter().map(|reader| grant_status(schema, reader)));
    statements
}

fn first_row(schema: &str) -> String {
    format!(
        "insert into {}.projector_layout (layout, oldest_binary) values ({LAYOUT}, {OLDEST_BINARY}) on conflict do nothing",
        quote(schema)
    )
}

fn grant_status(schema: &str, reader: &str) -> String {
    format!("grant select on {}.{} to {}", quote(schema), STATUS_VIEW.name, quote(reader))
}

/// Puts the schema into a statement of this program.
pub(super) fn in_schema(schema: &str, sql: &str) -> String {
    sql.replace("{s}", &quote(schema))
}

pub(super) async fn lay_out(store: &PostgresStore) -> Result<(), StoreError> {
    let connections = store.ddl_connections();
    let mut work = Work::begin(connections, Purpose::Other, "lay out the store", store.ddl_limits()).await?;
    let done = lay_out_in(store, &mut work).await;
    work.end(done).await
}

async fn lay_out_in(store: &PostgresStore, work: &mut Work<'_>) -> Result<(), StoreError> {
    lock(work, &store.schema).await?;
    make_schema(store, work).await?;
    if let Some(layout) = catalogue::relation(work, &store.schema, "projector_layout").await? {
        refuse_newer(store, work, &layout).await?;
    }
    for table in TABLES {
        match catalogue::relation(work, &store.schema, table.name).await? {
            Some(relation) => verify(table, &relation)?,
            None => make(store, work, table.name, &in_schema(&store.schema, table.create)).await?,
        }
    }
    for (name, create) in INDEXES {
        if !catalogue::has_index(work, &store.schema, name).await? {
            make(store, work, name, &in_schema(&store.schema, create)).await?;
        }
    }
    if store.ddl == DdlMode::Apply {
        work.script(&first_row(&store.schema)).await?;
    }
    make_status_view(store, work).await?;
    if store.ddl == DdlMode::Apply {
        let names = TABLES.iter().map(|table| table.name.to_owned()).collect::<Vec<_>>();
        grant_tables(store, work, &names).await?;
    }
    Ok(())
}

/// Waits for the lock that all changes of tables and registrations take, until the transaction ends.
pub(super) async fn lock(work: &mut Work<'_>, schema: &str) -> Result<(), StoreError> {
    let sql = "select pg_advisory_xact_lock(hashtextextended($1, 4196))";
    work.run(sql, Parameters::new().and(format!("projector {schema}"))).await.map(drop)
}

async fn make_schema(store: &PostgresStore, work: &mut Work<'_>) -> Result<(), StoreError> {
    let there = work
        .rows("select from pg_namespace where nspname = $1", Parameters::new().and(&*store.schema))
        .await?;
    if there.is_empty() {
        let name = format!("schema {}", store.schema);
        make(store, work, &name, &format!("create schema {}", quote(&store.schema))).await?;
    }
    let sql =
        "select r from unnest($1::text[]) as r where not exists (select from pg_roles where rolname = r)";
    if let Some(row) = work.rows(sql, Parameters::new().and(&*store.readers)).await?.first() {
        let role: String = get(row, 0)?;
        return Err(StoreError::Refused {
            problem: format!("`store.readers` names the role {role}, which the database does not have"),
            fix: "create the role or take it out of the list".to_owned(),
        });
    }
    if store.ddl == DdlMode::Apply {
        let sql = "select r from unnest($1::text[]) as r where not has_schema_privilege(r, $2, 'usage')";
        for row in work.rows(sql, Parameters::new().and(&*store.readers).and(&*store.schema)).await? {
            let role: String = get(&row, 0)?;
            work.script(&format!("grant usage on schema {} to {}", quote(&store.schema), quote(&role)))
                .await?;
        }
    }
    Ok(())
}

/// Makes what is missing, or says with which SQL somebody else makes it.
pub(super) async fn make(
    store: &PostgresStore,
    work: &mut Work<'_>,
    name: &str,
    sql: &str,
) -> Result<(), StoreError> {
    match store.ddl {
        DdlMode::Apply => work.script(sql).await,
        DdlMode::Verify => Err(StoreError::Layout {
            problem: format!("{name} is missing from schema {}", store.schema),
            fix: format!("`store.ddl` is `verify`, so run this SQL:\n{sql};"),
        }),
    }
}

async fn refuse_newer(
    store: &PostgresStore,
    work: &mut Work<'_>,
    relation: &Relation,
) -> Result<(), StoreError> {
    if !relation.columns.iter().any(|column| column.name == "oldest_binary") {
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

fn verify(table: &OwnTable, relation: &Relation) -> Result<(), StoreError> {
    let differs = |problem: String| StoreError::Layout {
        problem,
        fix: format!("change it back, or move the table away so that {} is made anew", table.name),
    };
    for (name, kind) in expected(table.create) {
        let Some(column) = relation.columns.iter().find(|column| column.name == name) else {
            return Err(differs(format!("table {} has no column {name}; it should be {kind}", table.name)));
        };
        if column.base_type != kind {
            return Err(differs(format!(
                "column {}.{name} is {}; it should be {kind}",
                table.name, column.full_type
            )));
        }
    }
    Ok(())
}

/// The columns that a statement of [`TABLES`] makes, with their types as the catalogue names them.
fn expected(create: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    create.lines().skip(1).filter_map(|line| {
        let (name, rest) = line.trim().split_once(' ')?;
        if matches!(name, "primary" | "foreign") {
            return None;
        }
        let kind = rest.trim_start();
        let kind = match kind.split([' ', ',']).next()? {
            "timestamptz" => "timestamp with time zone",
            "double" => "double precision",
            word => word,
        };
        Some((name, kind))
    })
}

async fn make_status_view(store: &PostgresStore, work: &mut Work<'_>) -> Result<(), StoreError> {
    let there = catalogue::relation(work, &store.schema, STATUS_VIEW.name).await?;
    let create = in_schema(&store.schema, STATUS_VIEW.create);
    if store.ddl == DdlMode::Verify && there.is_some() {
        return Ok(());
    }
    make(store, work, STATUS_VIEW.name, &create).await?;
    for reader in &store.readers {
        work.script(&grant_status(&store.schema, reader)).await?;
    }
    let comment = quote_text("The state of each view, by the database's clock.");
    work.script(&format!("comment on view {}.{} is {comment}", quote(&store.schema), STATUS_VIEW.name)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_columns_are_read_from_the_statements() {
        let instances = TABLES.iter().find(|table| table.name == "projector_instances").unwrap();
        let columns: Vec<_> = expected(instances.create).collect();
        assert_eq!(columns[0], ("instance", "text"));
        assert_eq!(columns[5], ("broker_answered_at", "timestamp with time zone"));
        assert_eq!(columns.len(), 6);
        let versions = TABLES.iter().find(|table| table.name == "projector_versions").unwrap();
        assert!(
            expected(versions.create).any(|column| column == ("staleness_limit_seconds", "double precision"))
        );
    }
}
