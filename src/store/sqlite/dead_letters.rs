//! Rows of `projector_dead_letters`.

use bytes::Bytes;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Row};

use super::errors::own;
use super::layout::NOW;
use super::register::key_of;
use crate::dead_letter::{DeadLetter, headers};
use crate::fault::{Reason, RecordFault, Stage};
use crate::position::RecordOffset;
use crate::record::{Record, RecordCoordinates, RecordTimestamp, TopicPartition};
use crate::store::{DeadLetterFilter, DeadLetterKey, StoreError, StoredDeadLetter};

const COLUMNS: &str = "projection, version, topic, partition, topic_id, record_offset, key, value, headers, \
                       record_timestamp, timestamp_type, stage, reason, detail, column_name, constraint_name, sqlstate, \
                       schema_id, state, created_at, published_at";

pub(super) async fn insert(
    connection: &mut SqliteConnection,
    letters: &[&DeadLetter],
) -> Result<(), StoreError> {
    for letter in letters {
        let record = &letter.record;
        let at = &record.coordinates;
        let (timestamp_type, timestamp) = match record.timestamp {
            RecordTimestamp::Create(millis) => ("create", Some(millis)),
            RecordTimestamp::LogAppend(millis) => ("log_append", Some(millis)),
            RecordTimestamp::Absent => ("absent", None),
        };
        sqlx::query(
            "insert into projector_dead_letters (projection, version, topic, partition, topic_id, record_offset, key, \
             value, headers, record_timestamp, timestamp_type, stage, reason, detail, column_name, constraint_name, \
             sqlstate, schema_id) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing",
        )
        .bind(&*letter.version.projection)
        .bind(letter.version.version)
        .bind(&*at.topic_partition.topic)
        .bind(at.topic_partition.partition)
        .bind(letter.topic_id.clone().unwrap_or_default())
        .bind(at.offset.get())
        .bind(record.key.as_deref().map(<[u8]>::to_vec))
        .bind(record.value.as_deref().map(<[u8]>::to_vec))
        .bind(headers::encode(&record.headers))
        .bind(timestamp)
        .bind(timestamp_type)
        .bind(letter.fault.stage.as_str())
        .bind(letter.fault.reason.as_str())
        .bind(&letter.fault.detail)
        .bind(&letter.fault.column)
        .bind(&letter.fault.constraint)
        .bind(&letter.fault.sqlstate)
        .bind(letter.schema_id)
        .execute(&mut *connection)
        .await
        .map_err(own("write a dead letter"))?;
    }
    Ok(())
}

pub(super) async fn mark(
    connection: &mut SqliteConnection,
    letters: &[DeadLetterKey],
) -> Result<(), StoreError> {
    for letter in letters {
        let sql = format!(
            "update projector_dead_letters set published_at = {NOW} where projection = ? and version = ? and topic = ? \
             and partition = ? and topic_id = ? and record_offset = ?"
        );
        sqlx::query(AssertSqlSafe(sql))
            .bind(&*letter.version.projection)
            .bind(letter.version.version)
            .bind(&*letter.partition.topic)
            .bind(letter.partition.partition)
            .bind(letter.topic_id.clone().unwrap_or_default())
            .bind(letter.offset.get())
            .execute(&mut *connection)
            .await
            .map_err(own("mark a dead letter as published"))?;
    }
    Ok(())
}

/// What is read: by filter, or what is not published yet.
pub(super) async fn read(
    connection: &mut SqliteConnection,
    filter: &DeadLetterFilter,
    only_unpublished: bool,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let unpublished = if only_unpublished { "and published_at is null" } else { "" };
    let sql = format!(
        "select {COLUMNS} from projector_dead_letters \
         where (?1 is null or projection = ?1) and (?2 is null or version = ?2) and (?3 is null or topic = ?3) \
         and (?4 is null or partition = ?4) and (?5 is null or record_offset = ?5) and (?6 is null or reason = ?6) \
         and (?7 is null or state = ?7) {unpublished} \
         order by created_at, projection, version, topic, partition, record_offset limit ?8"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(&filter.projection)
        .bind(filter.version)
        .bind(filter.partition.as_ref().map(|partition| partition.topic.to_string()))
        .bind(filter.partition.as_ref().map(|partition| partition.partition))
        .bind(filter.offset)
        .bind(&filter.reason)
        .bind(&filter.state)
        .bind(filter.limit)
        .fetch_all(connection)
        .await
        .map_err(own("read dead letters"))?;
    rows.iter().map(stored).collect()
}

fn stored(row: &SqliteRow) -> Result<StoredDeadLetter, StoreError> {
    let unreadable = |what: &str| StoreError::Bug {
        action: "read a dead letter",
        detail: format!("its {what} is not known to this version of projector"),
    };
    let topic_id: String = row.get(4);
    let timestamp: Option<i64> = row.get(9);
    let timestamp = match (row.get::<String, _>(10).as_str(), timestamp) {
        ("create", Some(millis)) => RecordTimestamp::Create(millis),
        ("log_append", Some(millis)) => RecordTimestamp::LogAppend(millis),
        _ => RecordTimestamp::Absent,
    };
    let schema_id: Option<i64> = row.get(17);
    let record = Record {
        coordinates: RecordCoordinates {
            topic_partition: TopicPartition::new(row.get::<String, _>(2), row.get(3)),
            offset: RecordOffset::new(row.get(5)),
        },
        leader_epoch: None,
        timestamp,
        key: row.get::<Option<Vec<u8>>, _>(6).map(Bytes::from),
        value: row.get::<Option<Vec<u8>>, _>(7).map(Bytes::from),
        headers: headers::decode(&row.get::<Vec<u8>, _>(8)).map_err(|_| unreadable("list of headers"))?,
    };
    let fault = RecordFault {
        stage: stage_of(row.get(11)).ok_or_else(|| unreadable("stage"))?,
        reason: reason_of(row.get(12)).ok_or_else(|| unreadable("reason"))?,
        detail: row.get(13),
        column: row.get(14),
        constraint: row.get(15),
        sqlstate: row.get(16),
    };
    Ok(StoredDeadLetter {
        letter: DeadLetter {
            version: key_of(row)?,
            topic_id: Some(topic_id).filter(|id| !id.is_empty()),
            record,
            fault,
            schema_id: schema_id.and_then(|id| u32::try_from(id).ok()),
        },
        state: row.get(18),
        created_at: row.get(19),
        published_at: row.get(20),
    })
}

fn stage_of(text: &str) -> Option<Stage> {
    let stages = [
        Stage::Consume,
        Stage::Decode,
        Stage::Map,
        Stage::Validate,
        Stage::Judge,
        Stage::Fold,
        Stage::Apply,
        Stage::Commit,
    ];
    stages.into_iter().find(|stage| stage.as_str() == text)
}

fn reason_of(text: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.as_str() == text)
}
