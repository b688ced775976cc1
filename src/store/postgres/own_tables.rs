//! The projector's own tables and indexes: their DDL, and whether one that is there is as it should be.
//!
//! What is expected is read from the statements themselves, so that it is written down once.

use super::catalogue::{ColumnFacts, IndexFacts, Relation};
use crate::store::StoreError;

/// A table of the projector. `{s}` stands for the schema.
pub(super) struct OwnTable {
    pub(super) name: &'static str,
    pub(super) create: &'static str,
}

pub(super) const TABLES: &[OwnTable] = &[
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

/// An index of the projector's tables.
pub(super) struct OwnIndex {
    pub(super) name: &'static str,
    table: &'static str,
    /// What the catalogue says of it.
    definition: &'static str,
    pub(super) create: &'static str,
}

pub(super) const INDEXES: &[OwnIndex] = &[
    OwnIndex {
        name: "projector_dead_letters_unpublished",
        table: "projector_dead_letters",
        definition: "btree (projection, version, topic, partition, record_offset) WHERE (published_at IS NULL)",
        create: "create index projector_dead_letters_unpublished on {s}.projector_dead_letters (projection, version, topic, partition, record_offset) where published_at is null",
    },
    OwnIndex {
        name: "projector_dead_letters_open",
        table: "projector_dead_letters",
        definition: "btree (projection, version, topic, partition) WHERE (state = 'open'::text)",
        create: "create index projector_dead_letters_open on {s}.projector_dead_letters (projection, version, topic, partition) where state = 'open'",
    },
];

/// A column as a statement of [`TABLES`] makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Expected {
    name: &'static str,
    /// As the catalogue names it.
    kind: &'static str,
    is_not_null: bool,
    has_default: bool,
}

impl OwnTable {
    /// The names of the primary key's columns, in its order.
    fn primary_key(&self) -> Vec<&'static str> {
        let list = self.create.split_once("primary key (").and_then(|(_, rest)| rest.split_once(')'));
        match list {
            Some((names, _)) => names.split(", ").collect(),
            None => {
                self.lines().filter(|(_, rest)| rest.contains("primary key")).map(|(name, _)| name).collect()
            }
        }
    }

    /// Names of columns, and what stands behind them.
    fn lines(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let lines = self.create.lines().skip(1).filter_map(|line| line.trim().split_once(' '));
        lines.filter(|(name, _)| !matches!(*name, "primary" | "foreign"))
    }

    fn columns(&self) -> impl Iterator<Item = Expected> {
        let key = self.primary_key();
        self.lines().filter_map(move |(name, rest)| {
            let rest = rest.trim_start();
            let kind = match rest.split([' ', ',']).next()? {
                "timestamptz" => "timestamp with time zone",
                "double" => "double precision",
                word => word,
            };
            let is_not_null = rest.contains("not null") || key.contains(&name);
            Some(Expected { name, kind, is_not_null, has_default: rest.contains(" default ") })
        })
    }

    /// Compares the table with what is there.
    pub(super) fn verify(&self, relation: &Relation) -> Result<(), StoreError> {
        let table = self.name;
        let differs = |problem: String| {
            let fix = format!(
                "put it back as `projector ddl` prints it, or move the table away so that {table} is made anew"
            );
            Err(StoreError::Layout { problem, fix })
        };
        if relation.kind != "r" && relation.kind != "p" {
            return differs(format!("{table} is no table"));
        }
        for should in self.columns() {
            let Expected { name, kind, .. } = should;
            let Some(is) = relation.columns.iter().find(|column| column.name == name) else {
                return differs(format!("table {table} has no column {name}; it should be {kind}"));
            };
            if is.base_type != kind {
                return differs(format!("column {table}.{name} is {}; it should be {kind}", is.full_type));
            }
            if is.is_not_null != should.is_not_null {
                let (is, should) =
                    if is.is_not_null { ("is not null", "nullable") } else { ("may be null", "not null") };
                return differs(format!("column {table}.{name} {is}; it should be {should}"));
            }
            if is.expression.is_some() != should.has_default {
                let (is, should) = if should.has_default { ("no", "one") } else { ("a", "none") };
                return differs(format!("column {table}.{name} has {is} default; it should have {should}"));
            }
        }
        let key = self.primary_key();
        if relation.primary_key != key {
            let (is, should) = (relation.primary_key.join(", "), key.join(", "));
            return differs(format!("the primary key of table {table} is ({is}); it should be ({should})"));
        }
        // A newer program may have added a column, where this one may still use its tables.
        let is_extra = |column: &&ColumnFacts| !self.lines().any(|(name, _)| name == column.name);
        let mut extra = relation.columns.iter().filter(is_extra);
        match extra.find(|column| column.is_not_null && column.expression.is_none()) {
            Some(extra) => {
                differs(format!("table {table} has the column {}, which must be given", extra.name))
            }
            None => Ok(()),
        }
    }
}

impl OwnIndex {
    /// Compares the index with what is there.
    pub(super) fn verify(&self, facts: &IndexFacts) -> Result<(), StoreError> {
        let problem = if facts.table != self.table {
            format!("the index {} is one of {}; it should be one of {}", self.name, facts.table, self.table)
        } else if !facts.is_valid {
            format!("the index {} is not valid", self.name)
        } else if facts.is_unique || facts.definition != self.definition {
            let unique = if facts.is_unique { "unique " } else { "" };
            format!(
                "the index {} is {unique}{}; it should be {}",
                self.name, facts.definition, self.definition
            )
        } else {
            return Ok(());
        };
        let fix = format!("`drop index {}`, and make it as `projector ddl` prints it", self.name);
        Err(StoreError::Layout { problem, fix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str) -> &'static OwnTable {
        TABLES.iter().find(|table| table.name == name).unwrap()
    }

    #[test]
    fn the_expected_columns_are_read_from_the_statements() {
        let columns: Vec<_> = table("projector_instances").columns().collect();
        let (first, last) = (columns[0], columns[5]);
        assert_eq!((first.name, first.kind, first.is_not_null), ("instance", "text", true));
        assert_eq!((last.name, last.kind), ("broker_answered_at", "timestamp with time zone"));
        assert!(!last.is_not_null && !last.has_default && columns[3].has_default);
        assert_eq!(columns.len(), 6);
        let versions: Vec<_> = table("projector_versions").columns().collect();
        let seconds = versions.iter().find(|column| column.name == "staleness_limit_seconds").unwrap();
        assert_eq!((seconds.kind, seconds.is_not_null), ("double precision", true));
    }

    #[test]
    fn the_expected_key_is_read_from_the_statements() {
        assert_eq!(table("projector_layout").primary_key(), ["one"]);
        assert_eq!(table("projector_instances").primary_key(), ["instance"]);
        let letters = ["projection", "version", "topic", "partition", "topic_id", "record_offset"];
        assert_eq!(table("projector_dead_letters").primary_key(), letters);
        assert!(TABLES.iter().all(|table| !table.primary_key().is_empty()));
    }
}
