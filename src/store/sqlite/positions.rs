//! Positions: the compare-and-set that ends every transaction, claims, and the answer to an unknown COMMIT.

use std::sync::Arc;

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::connections::{Connections, Parameters, Purpose, Work};
use super::errors::bug;
use super::layout::NOW;
use crate::position::{Epoch, Fence, NextOffset, Revision};
use crate::record::TopicPartition;
use crate::store::{
    Advance, ClaimRequest, Claimed, Outcome, PositionRow, Quarantine, QuarantineChange, StoreError,
    VersionKey,
};

/// The columns of a position row that its owner wants to know.
const COLUMNS: &str =
    "position, epoch, revision, boundary, topic_id, leader_epoch, quarantine_reason, quarantine_detail";

/// What finds a position row; its parameters come first.
const KEY: &str = "projection = ?1 and version = ?2 and topic = ?3 and partition = ?4";

/// The parameters of [`KEY`].
pub(super) fn key(version: &VersionKey, partition: &TopicPartition) -> Parameters {
    of(version).and(&*partition.topic).and(partition.partition)
}

/// Projection and version.
pub(super) fn of(version: &VersionKey) -> Parameters {
    Parameters::new().and(&*version.projection).and(i64::from(version.version))
}

/// A column of an answer.
pub(super) fn get<'r, T>(row: &'r SqliteRow, index: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(index).map_err(|_| bug("read an answer", format!("column {index} has another type")))
}

/// The version in two columns of an answer.
pub(super) fn version_key(row: &SqliteRow, index: usize) -> Result<VersionKey, StoreError> {
    let version = u32::try_from(get::<i64>(row, index + 1)?)
        .map_err(|_| bug("read an answer", "a version's number is out of range"))?;
    Ok(VersionKey { projection: Arc::from(get::<String>(row, index)?), version })
}

/// The partition in two columns of an answer.
pub(super) fn partition(row: &SqliteRow, index: usize) -> Result<TopicPartition, StoreError> {
    Ok(TopicPartition::new(get::<String>(row, index)?, get(row, index + 1)?))
}

async fn fence(
    work: &mut Work<'_>,
    version: &VersionKey,
    partition: &TopicPartition,
) -> Result<Option<Fence>, StoreError> {
    let sql = format!("select position, epoch, revision from projector_positions where {KEY}");
    let rows = work.rows(&sql, key(version, partition)).await?;
    rows.first().map(fence_of).transpose()
}

fn fence_of(row: &SqliteRow) -> Result<Fence, StoreError> {
    Ok(Fence {
        position: NextOffset::new(get(row, 0)?),
        epoch: Epoch::new(get(row, 1)?),
        revision: Revision::new(get(row, 2)?),
    })
}

/// The indexes of the partitions that are not as expected.
pub(super) async fn fenced(
    work: &mut Work<'_>,
    version: &VersionKey,
    advances: &[Advance],
) -> Result<Vec<usize>, StoreError> {
    let mut fenced = Vec::new();
    for (index, advance) in advances.iter().enumerate() {
        if fence(work, version, &advance.partition).await? != Some(advance.expected) {
            fenced.push(index);
        }
    }
    Ok(fenced)
}

/// Advances every partition whose row is as expected, and returns the indexes of the others.
pub(super) async fn advance(
    work: &mut Work<'_>,
    version: &VersionKey,
    advances: &[Advance],
) -> Result<Vec<usize>, StoreError> {
    let sql = format!(
        "update projector_positions set \
           position = ?8, \
           revision = revision + 1, \
           topic_id = coalesce(?9, topic_id), \
           leader_epoch = coalesce(?10, leader_epoch), \
           quarantine_reason = case ?11 when 0 then quarantine_reason when 1 then ?12 end, \
           quarantine_detail = case ?11 when 0 then quarantine_detail when 1 then ?13 end, \
           quarantined_at = case ?11 when 0 then quarantined_at when 1 then {NOW} end, \
           request = case ?11 when 0 then request end, \
           updated_at = {NOW} \
         where {KEY} and position = ?5 and epoch = ?6 and revision = ?7"
    );
    let mut lost = Vec::new();
    for (index, advance) in advances.iter().enumerate() {
        let (change, reason, detail) = match &advance.quarantine {
            QuarantineChange::Keep => (0_i64, None, None),
            QuarantineChange::Enter(why) => (1, Some(why.reason.as_str()), Some(without_nul(&why.detail))),
            QuarantineChange::End => (2, None, None),
        };
        let parameters = key(version, &advance.partition)
            .and(advance.expected.position.get())
            .and(advance.expected.epoch.get())
            .and(advance.expected.revision.get())
            .and(advance.to.get())
            .and(advance.topic_id.as_deref())
            .and(advance.leader_epoch)
            .and(change)
            .and(reason)
            .and(detail);
        if work.run(&sql, parameters).await? != 1 {
            lost.push(index);
        }
    }
    Ok(lost)
}

/// NUL ends a text for many readers of SQLite.
pub(super) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) async fn claim(connections: &Connections, claim: &ClaimRequest) -> Result<Claimed, StoreError> {
    let mut work = Work::begin(connections, Purpose::Write, "claim a partition").await?;
    let claimed = claim_in(&mut work, claim).await;
    work.end(claimed).await
}

/// The write lock is held, so that what was seen cannot have changed and no claim is lost.
async fn claim_in(work: &mut Work<'_>, claim: &ClaimRequest) -> Result<Claimed, StoreError> {
    let known = "select 1 from projector_versions \
                 where projection = ?1 and version = ?2 and state <> 'retired' and digest = ?3";
    if work.rows(known, of(&claim.version).and(&*claim.digest)).await?.is_empty() {
        return Ok(Claimed::Gone);
    }
    // A partition that appeared after the version was registered gets its row here.
    let upsert = format!(
        "insert into projector_positions \
           (projection, version, topic, partition, position, epoch, start_position, boundary, topic_id, owner) \
         values (?1, ?2, ?3, ?4, 0, 1 + (select first_epoch from projector_layout), 0, 0, ?6, ?5) \
         on conflict do update set epoch = epoch + 1, owner = excluded.owner, updated_at = {NOW} \
         returning {COLUMNS}"
    );
    let parameters =
        key(&claim.version, &claim.partition).and(&*claim.instance.0).and(claim.topic_id.as_deref());
    let rows = work.rows(&upsert, parameters).await?;
    let row = rows.first().ok_or_else(|| bug("claim a partition", "a row was asked for"))?;
    let detail: Option<String> = get(row, 7)?;
    Ok(Claimed::Owned(PositionRow {
        fence: fence_of(row)?,
        boundary: NextOffset::new(get(row, 3)?),
        topic_id: get(row, 4)?,
        leader_epoch: get(row, 5)?,
        quarantine: get::<Option<String>>(row, 6)?
            .map(|reason| Quarantine { reason, detail: detail.unwrap_or_default() }),
    }))
}

pub(super) async fn outcome(
    connections: &Connections,
    version: &VersionKey,
    expected: &[Advance],
) -> Result<Vec<Outcome>, StoreError> {
    // A transaction that writes, so that it waits for one that has not ended yet.
    let mut work = Work::begin(connections, Purpose::Write, "decide an unknown COMMIT").await?;
    let outcomes = outcomes(&mut work, version, expected).await;
    work.end(outcomes).await
}

async fn outcomes(
    work: &mut Work<'_>,
    version: &VersionKey,
    expected: &[Advance],
) -> Result<Vec<Outcome>, StoreError> {
    let mut outcomes = Vec::with_capacity(expected.len());
    for Advance { partition, expected, .. } in expected {
        outcomes.push(match fence(work, version, partition).await? {
            Some(found) if found.epoch != expected.epoch => Outcome::Fenced,
            Some(found) if found.revision == expected.revision.successor() => Outcome::Applied,
            Some(found) if found.revision == expected.revision => Outcome::NotApplied,
            _ => Outcome::Fenced,
        });
    }
    Ok(outcomes)
}
