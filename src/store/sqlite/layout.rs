//! The projector's own tables.

use sqlx::sqlite::SqliteConnection;

use super::connection::execute;
use super::ddl;
use super::errors::own;
use crate::store::StoreError;

/// The number of this layout.
const LAYOUT: i64 = 1;
/// The oldest layout number whose program may use these tables.
const OLDEST_BINARY: i64 = 1;

/// Microseconds since 1970, as every time here is kept.
pub(super) const NOW: &str = "cast(unixepoch('subsec') * 1000000 as integer)";

/// Names with their columns, so that a difference can be named.
const TABLES: &[(&str, &str)] = &[
    ("projector_layout", "\
one INTEGER primary key default 1 check (one = 1), layout INTEGER not null, oldest_binary INTEGER not null"),
    ("projector_versions", "\
projection TEXT not null, version INTEGER not null,
state TEXT not null check (state in ('building', 'caught_up', 'live', 'retired')),
text TEXT not null, digest TEXT not null, declaration TEXT not null, cluster_id TEXT not null,
consumer_group TEXT not null, staleness_limit_seconds REAL not null,
registered_at INTEGER not null default (cast(unixepoch('subsec') * 1000000 as integer)), promoted_at INTEGER,
primary key (projection, version)"),
    ("projector_positions", "\
projection TEXT not null, version INTEGER not null, topic TEXT not null, partition INTEGER not null,
position INTEGER not null, epoch INTEGER not null default 0, revision INTEGER not null default 0,
start_position INTEGER not null, boundary INTEGER not null, topic_id TEXT, leader_epoch INTEGER, owner TEXT,
quarantine_reason TEXT, quarantine_detail TEXT, quarantined_at INTEGER,
request TEXT check (request in ('resume', 'resume_with_dead_letter')),
updated_at INTEGER not null default (cast(unixepoch('subsec') * 1000000 as integer)),
primary key (projection, version, topic, partition),
foreign key (projection, version) references projector_versions"),
    ("projector_instances", "\
instance TEXT not null primary key, host TEXT not null, program_version TEXT not null,
started_at INTEGER not null default (cast(unixepoch('subsec') * 1000000 as integer)),
heartbeat_at INTEGER not null, broker_answered_at INTEGER"),
    ("projector_observations", "\
projection TEXT not null, version INTEGER not null, topic TEXT not null, partition INTEGER not null,
epoch INTEGER not null, instance TEXT not null, readable_end INTEGER, oldest_pending_at INTEGER, blocked TEXT,
observed_at INTEGER not null, primary key (projection, version, topic, partition)"),
    ("projector_dead_letters", "\
projection TEXT not null, version INTEGER not null, topic TEXT not null, partition INTEGER not null,
topic_id TEXT not null default '', record_offset INTEGER not null, key BLOB, value BLOB, headers BLOB not null,
record_timestamp INTEGER, timestamp_type TEXT not null check (timestamp_type in ('create', 'log_append', 'absent')),
stage TEXT not null, reason TEXT not null, detail TEXT not null, column_name TEXT, constraint_name TEXT, sqlstate TEXT,
schema_id INTEGER,
state TEXT not null default 'open' check (state in ('open', 'resolved', 'discarded', 'edited', 'parked')),
created_at INTEGER not null default (cast(unixepoch('subsec') * 1000000 as integer)), published_at INTEGER,
primary key (projection, version, topic, partition, topic_id, record_offset)"),
    ("projector_sequences", "\
projection TEXT not null, version INTEGER not null, topic TEXT not null, aggregate BLOB not null,
sequence TEXT not null, primary key (projection, version, topic, aggregate)"),
    ("projector_erasures", "\
subject TEXT not null primary key, reason TEXT,
erased_at INTEGER not null default (cast(unixepoch('subsec') * 1000000 as integer))"),
];

const INDEXES: &str = "
create index if not exists projector_dead_letters_unpublished
  on projector_dead_letters (projection, version, topic, partition, record_offset) where published_at is null;
create index if not exists projector_dead_letters_open
  on projector_dead_letters (projection, version, topic, partition) where state = 'open';";

/// What readers can rely on, judged by the clock of this machine. The same rules as `status::rules`.
const STATUS_VIEW: &str = "
create view projector_view_status as
with clock as (select cast(unixepoch('subsec') * 1000000 as integer) as now),
parts as (
  select p.projection, p.version, p.position, p.quarantine_reason, o.readable_end, o.oldest_pending_at,
         o.readable_end is not null and (select now from clock) - o.observed_at < 10000000 as is_observed,
         (select count(*) from projector_dead_letters d
          where d.projection = p.projection and d.version = p.version and d.topic = p.topic
            and d.partition = p.partition and d.state = 'open') as open_dead_letters
  from projector_positions p
  left join projector_observations o
    on o.projection = p.projection and o.version = p.version and o.topic = p.topic and o.partition = p.partition
   and o.epoch = p.epoch
),
sums as (
  select projection, version, max(quarantine_reason) as quarantine_reason, min(is_observed) as is_observed,
         sum(max(coalesce(readable_end, position) - position, 0)) as lag_records,
         max(case when readable_end > position then max((select now from clock) - oldest_pending_at, 0) else 0 end) / 1e6
           as age_seconds,
         sum(open_dead_letters) as open_dead_letters
  from parts group by projection, version
)
select j.value as view, v.projection, v.version,
       case when s.quarantine_reason is not null then 'quarantined'
            when not coalesce(s.is_observed, 0) then 'unavailable'
            when v.state <> 'live' then 'catching_up'
            when s.age_seconds > v.staleness_limit_seconds then 'catching_up'
            else 'ready' end as state,
       case when s.quarantine_reason is not null then s.quarantine_reason
            when not coalesce(s.is_observed, 0) then 'nobody has observed every partition within 10 s'
            when v.state <> 'live' then 'the version is ' || v.state
            when s.age_seconds > v.staleness_limit_seconds then 'older than its limit' end as reason,
       s.lag_records, s.age_seconds, v.staleness_limit_seconds, coalesce(s.open_dead_letters, 0) as open_dead_letters,
       (select now from clock) as as_of
from projector_versions v
join json_each(v.declaration, '$.views') j
left join sums s on s.projection = v.projection and s.version = v.version
where v.state <> 'retired'";

/// Makes what is missing, and verifies what is there.
pub(super) async fn lay_out(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let action = "lay out the projector's tables";
    for (name, columns) in TABLES {
        let found = ddl::columns(connection, name).await?;
        if found.is_empty() {
            execute(connection, action, &format!("create table {name} ({columns}) strict")).await?;
            continue;
        }
        for expected in column_names(columns) {
            if !found.iter().any(|(column, ..)| column == expected) {
                return Err(StoreError::Layout {
                    problem: format!("table {name} has no column {expected}"),
                    fix: "something outside projector changed the file; restore it, or begin with a new one"
                        .to_owned(),
                });
            }
        }
    }
    execute(connection, action, INDEXES).await?;
    execute(connection, action, "drop view if exists projector_view_status").await?;
    execute(connection, action, STATUS_VIEW).await?;
    let known: Option<(i64, i64)> = sqlx::query_as("select layout, oldest_binary from projector_layout")
        .fetch_optional(&mut *connection)
        .await
        .map_err(own(action))?;
    match known {
        None => {
            sqlx::query("insert into projector_layout (layout, oldest_binary) values (?, ?)")
                .bind(LAYOUT)
                .bind(OLDEST_BINARY)
                .execute(connection)
                .await
                .map_err(own(action))?;
            Ok(())
        }
        Some((_, oldest)) if oldest > LAYOUT => Err(StoreError::Layout {
            problem: format!(
                "the file was laid out by a newer projector (layout {oldest}, this one knows {LAYOUT})"
            ),
            fix: "run that version of projector".to_owned(),
        }),
        Some(_) => Ok(()),
    }
}

/// The names of the columns in a definition: the first word of each part outside parentheses, constraints left out.
fn column_names(definition: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    definition
        .split(move |c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            c == ',' && depth == 0
        })
        .filter_map(|part| part.split_whitespace().next())
        .filter(|word| !matches!(*word, "primary" | "foreign"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_names_are_found_in_a_definition() {
        let names: Vec<&str> =
            column_names("a TEXT check (a in ('x', 'y')),\n b INTEGER, primary key (a, b)").collect();
        assert_eq!(names, ["a", "b"]);
    }
}
