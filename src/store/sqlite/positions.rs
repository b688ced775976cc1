//! Position rows: claimed, compared and set.

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Row};

use super::connection::Verdict;
use super::errors::own;
use super::layout::NOW;
use crate::position::{Epoch, Fence, NextOffset, Revision};
use crate::store::{
    Advance, ClaimRequest, Claimed, Outcome, PositionRow, Quarantine, QuarantineChange, StoreError,
    VersionKey,
};

pub(super) async fn claim(
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
) -> Result<Verdict<Claimed>, StoreError> {
    let action = "claim a partition";
    let (projection, version) = (&*request.version.projection, request.version.version);
    let registered: Option<(i64,)> = sqlx::query_as(
        "select 1 from projector_versions where projection = ? and version = ? and state <> 'retired'",
    )
    .bind(projection)
    .bind(version)
    .fetch_optional(&mut *connection)
    .await
    .map_err(own(action))?;
    if registered.is_none() {
        return Ok(Verdict::RollBack(Claimed::Gone));
    }
    // A partition that has appeared since begins at 0.
    let sql = format!(
        "insert into projector_positions (projection, version, topic, partition, position, epoch, start_position, \
         boundary, topic_id) values (?, ?, ?, ?, 0, {NOW} / 1000, 0, 0, ?) on conflict do nothing"
    );
    sqlx::query(AssertSqlSafe(sql))
        .bind(projection)
        .bind(version)
        .bind(&*request.partition.topic)
        .bind(request.partition.partition)
        .bind(&request.topic_id)
        .execute(&mut *connection)
        .await
        .map_err(own(action))?;
    let sql = format!(
        "update projector_positions set epoch = epoch + 1, owner = ?5, updated_at = {NOW} \
         where projection = ?1 and version = ?2 and topic = ?3 and partition = ?4 \
         returning position, epoch, revision, boundary, topic_id, leader_epoch, quarantine_reason, quarantine_detail"
    );
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(projection)
        .bind(version)
        .bind(&*request.partition.topic)
        .bind(request.partition.partition)
        .bind(&*request.instance.0)
        .fetch_one(connection)
        .await
        .map_err(own(action))?;
    let leader_epoch: Option<i64> = row.get(5);
    let reason: Option<String> = row.get(6);
    Ok(Verdict::Commit(Claimed::Owned(PositionRow {
        fence: fence_of(&row),
        boundary: NextOffset::new(row.get(3)),
        topic_id: row.get(4),
        leader_epoch: leader_epoch.and_then(|epoch| i32::try_from(epoch).ok()),
        quarantine: reason
            .map(|reason| Quarantine { reason, detail: row.get::<Option<String>, _>(7).unwrap_or_default() }),
    })))
}

/// Position, epoch and revision, the first three columns.
fn fence_of(row: &SqliteRow) -> Fence {
    Fence {
        position: NextOffset::new(row.get(0)),
        epoch: Epoch::new(row.get(1)),
        revision: Revision::new(row.get(2)),
    }
}

/// Compares and sets all positions; returns those that are not as expected.
pub(super) async fn advance(
    connection: &mut SqliteConnection,
    version: &VersionKey,
    advances: &[Advance],
) -> Result<Vec<usize>, StoreError> {
    let mut fenced = Vec::new();
    for (index, advance) in advances.iter().enumerate() {
        let (enters, ends, quarantine) = match &advance.quarantine {
            QuarantineChange::Keep => (false, false, None),
            QuarantineChange::Enter(quarantine) => (true, false, Some(quarantine)),
            QuarantineChange::End => (false, true, None),
        };
        let sql = format!(
            "update projector_positions set position = ?8, revision = revision + 1, updated_at = {NOW}, \
             topic_id = coalesce(?9, topic_id), leader_epoch = coalesce(?10, leader_epoch), \
             quarantine_reason = case when ?11 then ?13 when ?12 then null else quarantine_reason end, \
             quarantine_detail = case when ?11 then ?14 when ?12 then null else quarantine_detail end, \
             quarantined_at = case when ?11 then {NOW} when ?12 then null else quarantined_at end, \
             request = case when ?11 or ?12 then null else request end \
             where projection = ?1 and version = ?2 and topic = ?3 and partition = ?4 \
             and position = ?5 and epoch = ?6 and revision = ?7"
        );
        let done = sqlx::query(AssertSqlSafe(sql))
            .bind(&*version.projection)
            .bind(version.version)
            .bind(&*advance.partition.topic)
            .bind(advance.partition.partition)
            .bind(advance.expected.position.get())
            .bind(advance.expected.epoch.get())
            .bind(advance.expected.revision.get())
            .bind(advance.to.get())
            .bind(&advance.topic_id)
            .bind(advance.leader_epoch)
            .bind(enters)
            .bind(ends)
            .bind(quarantine.map(|quarantine| quarantine.reason.clone()))
            .bind(quarantine.map(|quarantine| quarantine.detail.clone()))
            .execute(&mut *connection)
            .await
            .map_err(own("set a position"))?;
        if done.rows_affected() != 1 {
            fenced.push(index);
        }
    }
    Ok(fenced)
}

pub(super) async fn outcome(
    connection: &mut SqliteConnection,
    version: &VersionKey,
    expected: &[Advance],
) -> Result<Vec<Outcome>, StoreError> {
    let mut outcomes = Vec::with_capacity(expected.len());
    for advance in expected {
        let row = sqlx::query(
            "select position, epoch, revision from projector_positions \
             where projection = ? and version = ? and topic = ? and partition = ?",
        )
        .bind(&*version.projection)
        .bind(version.version)
        .bind(&*advance.partition.topic)
        .bind(advance.partition.partition)
        .fetch_optional(&mut *connection)
        .await
        .map_err(own("decide an unknown commit"))?;
        let found = row.map(|row| fence_of(&row)).filter(|found| found.epoch == advance.expected.epoch);
        outcomes.push(match found {
            Some(found) if found.revision == advance.expected.revision.successor() => Outcome::Applied,
            Some(found) if found.revision == advance.expected.revision => Outcome::NotApplied,
            _ => Outcome::Fenced,
        });
    }
    Ok(outcomes)
}
