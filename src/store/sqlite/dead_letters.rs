//! Dead letters: written with the position that passes them, listed, marked as published.

use bytes::Bytes;
use sqlx::sqlite::SqliteRow;

use super::connections::{Connections, Parameters, Purpose, Work};
use super::errors::bug;
use super::layout::NOW;
use super::positions::{get, key, partition, version_key, without_nul};
use crate::dead_letter::{DeadLetter, headers};
use crate::fault::RecordFault;
use crate::position::RecordOffset;
use crate::record::{Record, RecordCoordinates, TopicPartition};
use crate::store::{DeadLetterFilter, DeadLetterKey, StoreError, StoredDeadLetter, VersionKey, sql};

const COLUMNS: &str = "projection, version, topic, partition, topic_id, record_offset, key, value, headers, \
     record_timestamp, timestamp_type, stage, reason, detail, column_name, constraint_name, sqlstate, schema_id, state, \
     created_at, published_at";

/// Writes dead letters; one that is there already stays as it is.
pub(super) async fn insert(work: &mut Work<'_>, letters: &[&DeadLetter]) -> Result<(), StoreError> {
    let sql = "insert into projector_dead_letters \
           (projection, version, topic, partition, topic_id, record_offset, key, value, headers, record_timestamp, \
            timestamp_type, stage, reason, detail, column_name, constraint_name, sqlstate, schema_id) \
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18) \
         on conflict do nothing";
    let text = |text: &Option<String>| text.as_deref().map(without_nul);
    for letter in letters {
        let DeadLetter { version, topic_id, record, fault, schema_id } = letter;
        let parameters = key(version, &record.coordinates.topic_partition)
            .and(topic_id.as_deref().unwrap_or_default())
            .and(record.coordinates.offset.get())
            .and(record.key.as_ref().map(|key| key.to_vec()))
            .and(record.value.as_ref().map(|value| value.to_vec()))
            .and(headers::encode(&record.headers))
            .and(record.timestamp.millis())
            .and(sql::timestamp_type(record.timestamp))
            .and(fault.stage.as_str())
            .and(fault.reason.as_str())
            .and(without_nul(&fault.detail))
            .and(text(&fault.column))
            .and(text(&fault.constraint))
            .and(text(&fault.sqlstate))
            .and(schema_id.map(i64::from));
        work.run(sql, parameters).await?;
    }
    Ok(())
}

/// Marks dead letters as published. One that is gone or marked already is no error.
async fn mark(work: &mut Work<'_>, letters: &[DeadLetterKey]) -> Result<(), StoreError> {
    let sql = format!(
        "update projector_dead_letters set published_at = {NOW} \
         where projection = ?1 and version = ?2 and topic = ?3 and partition = ?4 and topic_id = ?5 \
           and record_offset = ?6 and published_at is null"
    );
    for letter in letters {
        let parameters = key(&letter.version, &letter.partition)
            .and(letter.topic_id.as_deref().unwrap_or_default())
            .and(letter.offset.get());
        work.run(&sql, parameters).await?;
    }
    Ok(())
}

pub(super) async fn mark_published(
    connections: &Connections,
    letters: &[DeadLetterKey],
) -> Result<(), StoreError> {
    if letters.is_empty() {
        return Ok(());
    }
    let mut work = Work::begin(connections, Purpose::Write, "mark dead letters as published").await?;
    let marked = mark(&mut work, letters).await;
    work.end(marked).await
}

pub(super) async fn unpublished(
    connections: &Connections,
    version: &VersionKey,
    partition: &TopicPartition,
    limit: u32,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let sql = format!(
        "select {COLUMNS} from projector_dead_letters \
         where projection = ?1 and version = ?2 and topic = ?3 and partition = ?4 and published_at is null \
         order by record_offset, topic_id limit ?5"
    );
    read(connections, &sql, key(version, partition).and(i64::from(limit))).await
}

pub(super) async fn count_unpublished(
    connections: &Connections,
    version: &VersionKey,
    partition: &TopicPartition,
    most: u32,
) -> Result<u32, StoreError> {
    let action = "count dead letters";
    let sql = "select count(*) from (select 1 from projector_dead_letters \
               where projection = ?1 and version = ?2 and topic = ?3 and partition = ?4 and published_at is null limit ?5) waiting";
    let mut work = Work::begin(connections, Purpose::Read, action).await?;
    let rows = work.rows(sql, key(version, partition).and(i64::from(most))).await;
    let rows = work.end(rows).await?;
    let row = rows.first().ok_or_else(|| bug(action, "no row"))?;
    Ok(u32::try_from(get::<i64>(row, 0)?).unwrap_or(most))
}

pub(super) async fn list(
    connections: &Connections,
    filter: &DeadLetterFilter,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let sql = format!(
        "select {COLUMNS} from projector_dead_letters \
         where (?1 is null or projection = ?1) and (?2 is null or version = ?2) \
           and (?3 is null or topic = ?3) and (?4 is null or partition = ?4) \
           and (?5 is null or record_offset = ?5) and (?6 is null or reason = ?6) and (?7 is null or state = ?7) \
         order by created_at, projection, version, topic, partition, record_offset, topic_id limit ?8"
    );
    let parameters = Parameters::new()
        .and(filter.projection.as_deref())
        .and(filter.version.map(i64::from))
        .and(filter.partition.as_ref().map(|partition| &*partition.topic))
        .and(filter.partition.as_ref().map(|partition| partition.partition))
        .and(filter.offset)
        .and(filter.reason.as_deref())
        .and(filter.state.as_deref())
        .and(i64::from(filter.limit));
    read(connections, &sql, parameters).await
}

async fn read(
    connections: &Connections,
    sql: &str,
    parameters: Parameters,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let mut work = Work::begin(connections, Purpose::Read, "read dead letters").await?;
    let rows = work.rows(sql, parameters).await;
    work.end(rows).await?.iter().map(stored).collect()
}

fn stored(row: &SqliteRow) -> Result<StoredDeadLetter, StoreError> {
    let unknown = |what: &str| bug("read dead letters", format!("{what} that this program does not know"));
    let topic_id: String = get(row, 4)?;
    let bytes = |index| Ok::<_, StoreError>(get::<Option<Vec<u8>>>(row, index)?.map(Bytes::from));
    let schema_id: Option<i64> = get(row, 17)?;
    let record = Record {
        coordinates: RecordCoordinates {
            topic_partition: partition(row, 2)?,
            offset: RecordOffset::new(get(row, 5)?),
        },
        leader_epoch: None,
        timestamp: sql::timestamp(&get::<String>(row, 10)?, get(row, 9)?)
            .ok_or_else(|| unknown("a kind of time"))?,
        key: bytes(6)?,
        value: bytes(7)?,
        headers: headers::decode(&get::<Vec<u8>>(row, 8)?).map_err(|_| unknown("headers"))?,
    };
    let fault = RecordFault {
        stage: sql::stage(&get::<String>(row, 11)?).ok_or_else(|| unknown("a stage"))?,
        reason: sql::reason(&get::<String>(row, 12)?).ok_or_else(|| unknown("a reason"))?,
        detail: get(row, 13)?,
        column: get(row, 14)?,
        constraint: get(row, 15)?,
        sqlstate: get(row, 16)?,
    };
    Ok(StoredDeadLetter {
        letter: DeadLetter {
            version: version_key(row, 0)?,
            topic_id: (!topic_id.is_empty()).then_some(topic_id),
            record,
            fault,
            schema_id: schema_id.and_then(|id| u32::try_from(id).ok()),
        },
        state: get(row, 18)?,
        created_at: get(row, 19)?,
        published_at: get(row, 20)?,
    })
}
