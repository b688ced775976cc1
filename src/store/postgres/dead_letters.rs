//! Dead letters: written with the position that passes them, listed, marked as published.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::connections::Purpose;
use super::errors::bug;
use super::positions::{get, number, without_nul};
use super::work::{Parameters, Work};
use crate::dead_letter::{DeadLetter, headers};
use crate::fault::RecordFault;
use crate::position::RecordOffset;
use crate::record::{Record, RecordCoordinates, TopicPartition};
use crate::store::sql;
use crate::store::{DeadLetterFilter, DeadLetterKey, StoreError, StoredDeadLetter, VersionKey};

/// Letters of one statement.
const MOST: usize = 500;

const COLUMNS: &str = "projection, version, topic, partition, topic_id, record_offset, key, value, headers, \
     record_timestamp, timestamp_type, stage, reason, detail, column_name, constraint_name, sqlstate, schema_id, state, \
     (extract(epoch from created_at) * 1000000)::int8, (extract(epoch from published_at) * 1000000)::int8";

/// Writes dead letters; one that is there already stays as it is.
pub(super) async fn insert(
    store: &PostgresStore,
    work: &mut Work<'_>,
    letters: &[&DeadLetter],
) -> Result<(), StoreError> {
    let sql = store.sql(
        "insert into {s}.projector_dead_letters \
           (projection, version, topic, partition, topic_id, record_offset, key, value, headers, record_timestamp, \
            timestamp_type, stage, reason, detail, column_name, constraint_name, sqlstate, schema_id) \
         select * from unnest($1::text[], $2::int4[], $3::text[], $4::int4[], $5::text[], $6::int8[], $7::bytea[], \
           $8::bytea[], $9::bytea[], $10::int8[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], \
           $16::text[], $17::text[], $18::int8[]) \
         on conflict do nothing",
    );
    for part in letters.chunks(MOST) {
        work.run(&sql, arrays(part)).await?;
    }
    Ok(())
}

fn arrays(letters: &[&DeadLetter]) -> Parameters {
    fn column<T>(letters: &[&DeadLetter], of: impl Fn(&DeadLetter) -> T) -> Vec<T> {
        letters.iter().map(|letter| of(letter)).collect()
    }
    let text = |text: &Option<String>| text.as_deref().map(without_nul);
    Parameters::new()
        .and(column(letters, |l| l.version.projection.to_string()))
        .and(column(letters, |l| number(l.version.version)))
        .and(column(letters, |l| l.record.coordinates.topic_partition.topic.to_string()))
        .and(column(letters, |l| l.record.coordinates.topic_partition.partition))
        .and(column(letters, |l| l.topic_id.clone().unwrap_or_default()))
        .and(column(letters, |l| l.record.coordinates.offset.get()))
        .and(column(letters, |l| l.record.key.as_ref().map(|key| key.to_vec())))
        .and(column(letters, |l| l.record.value.as_ref().map(|value| value.to_vec())))
        .and(column(letters, |l| headers::encode(&l.record.headers)))
        .and(column(letters, |l| l.record.timestamp.millis()))
        .and(column(letters, |l| sql::timestamp_type(l.record.timestamp)))
        .and(column(letters, |l| l.fault.stage.as_str()))
        .and(column(letters, |l| l.fault.reason.as_str()))
        .and(column(letters, |l| without_nul(&l.fault.detail)))
        .and(column(letters, |l| text(&l.fault.column)))
        .and(column(letters, |l| text(&l.fault.constraint)))
        .and(column(letters, |l| text(&l.fault.sqlstate)))
        .and(column(letters, |l| l.schema_id.map(i64::from)))
}

/// Marks dead letters as published. One that is gone or marked already is no error.
async fn mark(
    store: &PostgresStore,
    work: &mut Work<'_>,
    letters: &[DeadLetterKey],
) -> Result<(), StoreError> {
    if letters.is_empty() {
        return Ok(());
    }
    let sql = store.sql(
        "update {s}.projector_dead_letters as d set published_at = now() \
         from unnest($1::text[], $2::int4[], $3::text[], $4::int4[], $5::text[], $6::int8[]) \
              as a(projection, version, topic, partition, topic_id, record_offset) \
         where d.projection = a.projection and d.version = a.version and d.topic = a.topic \
           and d.partition = a.partition and d.topic_id = a.topic_id and d.record_offset = a.record_offset \
           and d.published_at is null",
    );
    let parameters = Parameters::new()
        .and(letters.iter().map(|l| l.version.projection.to_string()).collect::<Vec<_>>())
        .and(letters.iter().map(|l| number(l.version.version)).collect::<Vec<_>>())
        .and(letters.iter().map(|l| l.partition.topic.to_string()).collect::<Vec<_>>())
        .and(letters.iter().map(|l| l.partition.partition).collect::<Vec<_>>())
        .and(letters.iter().map(|l| l.topic_id.clone().unwrap_or_default()).collect::<Vec<_>>())
        .and(letters.iter().map(|l| l.offset.get()).collect::<Vec<_>>());
    work.run(&sql, parameters).await.map(drop)
}

pub(super) async fn mark_published(
    store: &PostgresStore,
    letters: &[DeadLetterKey],
) -> Result<(), StoreError> {
    if letters.is_empty() {
        return Ok(());
    }
    let limits = store.write_limits();
    let mut work =
        Work::begin(&store.connections, Purpose::Other, "mark dead letters as published", limits).await?;
    let marked = mark(store, &mut work, letters).await;
    work.end(marked).await
}

pub(super) async fn unpublished(
    store: &PostgresStore,
    version: &VersionKey,
    partition: &TopicPartition,
    limit: u32,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let sql = store.sql(&format!(
        "select {COLUMNS} from {{s}}.projector_dead_letters \
         where projection = $1 and version = $2 and topic = $3 and partition = $4 and published_at is null \
         order by record_offset, topic_id limit $5"
    ));
    let parameters = Parameters::new()
        .and(&*version.projection)
        .and(number(version.version))
        .and(&*partition.topic)
        .and(partition.partition)
        .and(i64::from(limit));
    read(store, "read dead letters", &sql, parameters).await
}

pub(super) async fn count_unpublished(
    store: &PostgresStore,
    version: &VersionKey,
    partition: &TopicPartition,
    most: u32,
) -> Result<u32, StoreError> {
    let action = "count dead letters";
    let sql = store.sql(
        "select count(*) from (select from {s}.projector_dead_letters \
         where projection = $1 and version = $2 and topic = $3 and partition = $4 and published_at is null limit $5) waiting",
    );
    let parameters = Parameters::new()
        .and(&*version.projection)
        .and(number(version.version))
        .and(&*partition.topic)
        .and(partition.partition)
        .and(i64::from(most));
    let mut work = Work::begin(&store.connections, Purpose::Other, action, store.write_limits()).await?;
    let rows = work.rows(&sql, parameters).await;
    let rows = work.end(rows).await?;
    let row = rows.first().ok_or_else(|| bug(action, "no row"))?;
    Ok(u32::try_from(get::<i64>(row, 0)?).unwrap_or(most))
}

pub(super) async fn list(
    store: &PostgresStore,
    filter: &DeadLetterFilter,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let sql = store.sql(&format!(
        "select {COLUMNS} from {{s}}.projector_dead_letters \
         where ($1::text is null or projection = $1) and ($2::int4 is null or version = $2) \
           and ($3::text is null or topic = $3 and partition = $4) and ($5::int8 is null or record_offset = $5) \
           and ($6::text is null or reason = $6) and ($7::text is null or state = $7) \
         order by created_at, projection, version, topic, partition, record_offset, topic_id limit $8"
    ));
    let parameters = Parameters::new()
        .and(filter.projection.as_deref())
        .and(filter.version.map(number))
        .and(filter.partition.as_ref().map(|partition| partition.topic.to_string()))
        .and(filter.partition.as_ref().map(|partition| partition.partition))
        .and(filter.offset)
        .and(filter.reason.as_deref())
        .and(filter.state.as_deref())
        .and(i64::from(filter.limit));
    read(store, "list dead letters", &sql, parameters).await
}

async fn read(
    store: &PostgresStore,
    action: &'static str,
    sql: &str,
    parameters: Parameters,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let mut work = Work::begin(&store.connections, Purpose::Other, action, store.write_limits()).await?;
    let rows = work.rows(sql, parameters).await;
    work.end(rows).await?.iter().map(stored).collect()
}

fn stored(row: &PgRow) -> Result<StoredDeadLetter, StoreError> {
    let projection: String = get(row, 0)?;
    let version: i32 = get(row, 1)?;
    let topic: String = get(row, 2)?;
    let topic_id: String = get(row, 4)?;
    let blob: Vec<u8> = get(row, 8)?;
    let headers = headers::decode(&blob)
        .map_err(|error| bug("read a dead letter", format!("its headers cannot be read: {error}")))?;
    let (millis, timestamp_type): (Option<i64>, String) = (get(row, 9)?, get(row, 10)?);
    let timestamp = sql::timestamp(&timestamp_type, millis)
        .ok_or_else(|| bug("read a dead letter", "its time is not of the type that it names"))?;
    let bytes = |index| get::<Option<Vec<u8>>>(row, index).map(|bytes| bytes.map(Bytes::from));
    let schema_id: Option<i64> = get(row, 17)?;
    let letter = DeadLetter {
        version: VersionKey { projection: Arc::from(projection), version: version.unsigned_abs() },
        topic_id: (!topic_id.is_empty()).then_some(topic_id),
        record: Record {
            coordinates: RecordCoordinates {
                topic_partition: TopicPartition::new(topic, get(row, 3)?),
                offset: RecordOffset::new(get(row, 5)?),
            },
            leader_epoch: None,
            timestamp,
            key: bytes(6)?,
            value: bytes(7)?,
            headers,
        },
        fault: fault(row)?,
        schema_id: schema_id.and_then(|id| u32::try_from(id).ok()),
    };
    Ok(StoredDeadLetter {
        letter,
        state: get(row, 18)?,
        created_at: get(row, 19)?,
        published_at: get(row, 20)?,
    })
}

fn fault(row: &PgRow) -> Result<RecordFault, StoreError> {
    let (stage, reason): (String, String) = (get(row, 11)?, get(row, 12)?);
    let known = sql::stage(&stage).zip(sql::reason(&reason));
    let Some((stage, reason)) = known else {
        return Err(StoreError::Layout {
            problem: format!(
                "a dead letter has stage {stage} and reason {reason}, which this program does not know"
            ),
            fix: "use the newer program that wrote it".to_owned(),
        });
    };
    let mut fault = RecordFault::new(stage, reason, get::<String>(row, 13)?);
    fault.column = get(row, 14)?;
    fault.constraint = get(row, 15)?;
    fault.sqlstate = get(row, 16)?;
    Ok(fault)
}
