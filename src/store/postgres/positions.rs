//! Positions: the compare-and-set that ends every transaction, claims, and the answer to an unknown COMMIT.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::connections::Purpose;
use super::errors::bug;
use super::work::{Parameters, Work};
use crate::position::{Epoch, Fence, NextOffset, Revision};
use crate::store::{
    Advance, ClaimRequest, Claimed, Outcome, PositionRow, Quarantine, QuarantineChange, StoreError,
    VersionKey,
};

/// The columns of a position row that its owner wants to know.
const COLUMNS: &str =
    "position, epoch, revision, boundary, topic_id, leader_epoch, quarantine_reason, quarantine_detail";

/// Versions are stored as `integer`.
pub(super) fn number(version: u32) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}

/// Advances every partition whose row is as expected, and returns the indexes of the others.
pub(super) async fn advance(
    store: &PostgresStore,
    work: &mut Work<'_>,
    version: &VersionKey,
    advances: &[Advance],
) -> Result<Vec<usize>, StoreError> {
    if advances.is_empty() {
        return Ok(Vec::new());
    }
    let sql = store.sql(
        "update {s}.projector_positions as p set \
           position = a.next_position, \
           revision = p.revision + 1, \
           topic_id = coalesce(a.topic_id, p.topic_id), \
           leader_epoch = coalesce(a.leader_epoch, p.leader_epoch), \
           quarantine_reason = case a.quarantine when 0 then p.quarantine_reason when 1 then a.reason end, \
           quarantine_detail = case a.quarantine when 0 then p.quarantine_detail when 1 then a.detail end, \
           quarantined_at = case a.quarantine when 0 then p.quarantined_at when 1 then now() end, \
           request = case a.quarantine when 0 then p.request end, \
           updated_at = now() \
         from unnest($3::text[], $4::int4[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::text[], $10::int4[], \
                     $11::int2[], $12::text[], $13::text[]) with ordinality \
              as a(topic, partition, position, epoch, revision, next_position, topic_id, leader_epoch, \
                   quarantine, reason, detail, n) \
         where p.projection = $1 and p.version = $2 and p.topic = a.topic and p.partition = a.partition \
           and p.position = a.position and p.epoch = a.epoch and p.revision = a.revision \
         returning a.n",
    );
    let quarantine = |advance: &Advance| match &advance.quarantine {
        QuarantineChange::Keep => (0_i16, None, None),
        QuarantineChange::Enter(why) => (1, Some(why.reason.clone()), Some(without_nul(&why.detail))),
        QuarantineChange::End => (2, None, None),
    };
    let parameters = Parameters::new()
        .and(&*version.projection)
        .and(number(version.version))
        .and(advances.iter().map(|a| a.partition.topic.to_string()).collect::<Vec<_>>())
        .and(advances.iter().map(|a| a.partition.partition).collect::<Vec<_>>())
        .and(advances.iter().map(|a| a.expected.position.get()).collect::<Vec<_>>())
        .and(advances.iter().map(|a| a.expected.epoch.get()).collect::<Vec<_>>())
        .and(advances.iter().map(|a| a.expected.revision.get()).collect::<Vec<_>>())
        .and(advances.iter().map(|a| a.to.get()).collect::<Vec<_>>())
        .and(advances.iter().map(|a| a.topic_id.clone()).collect::<Vec<_>>())
        .and(advances.iter().map(|a| a.leader_epoch).collect::<Vec<_>>())
        .and(advances.iter().map(|a| quarantine(a).0).collect::<Vec<_>>())
        .and(advances.iter().map(|a| quarantine(a).1).collect::<Vec<_>>())
        .and(advances.iter().map(|a| quarantine(a).2).collect::<Vec<_>>());
    let mut missing = vec![true; advances.len()];
    for row in work.rows(&sql, parameters).await? {
        let index = row.try_get::<i64, _>(0).ok().and_then(|n| usize::try_from(n - 1).ok());
        match index.and_then(|index| missing.get_mut(index)) {
            Some(flag) => *flag = false,
            None => return Err(bug("advance positions", "a row that was not asked for")),
        }
    }
    Ok(missing.iter().enumerate().filter(|(_, missing)| **missing).map(|(index, _)| index).collect())
}

pub(super) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) async fn claim(store: &PostgresStore, claim: &ClaimRequest) -> Result<Claimed, StoreError> {
    let mut work =
        Work::begin(&store.connections, Purpose::Other, "claim a partition", store.claim_limits()).await?;
    let claimed = claim_in(store, &mut work, claim).await;
    work.end(claimed).await
}

async fn claim_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    claim: &ClaimRequest,
) -> Result<Claimed, StoreError> {
    let select = store.sql(
        "select epoch from {s}.projector_positions \
         where projection = $1 and version = $2 and topic = $3 and partition = $4",
    );
    let seen = work.rows(&select, row_of(claim)).await?;
    let owned = if let Some(row) = seen.first() {
        let update = store.sql(&format!(
            "update {{s}}.projector_positions set epoch = epoch + 1, owner = $5, updated_at = now() \
                 where projection = $1 and version = $2 and topic = $3 and partition = $4 and epoch = $6 \
                   and exists (select from {{s}}.projector_versions where projection = $1 and version = $2 \
                     and state <> 'retired' and digest = $7) \
                 returning {COLUMNS}"
        ));
        let epoch: i64 = get(row, 0)?;
        work.rows(&update, row_of(claim).and(&*claim.instance.0).and(epoch).and(&*claim.digest)).await?
    } else {
        // It appeared after the version was registered. The version's row is held, so that nobody retires it meanwhile.
        let insert = store.sql(&format!(
                "insert into {{s}}.projector_positions \
                   (projection, version, topic, partition, position, epoch, start_position, boundary, topic_id, owner) \
                 select projection, version, $3, $4, 0, 1 + (select first_epoch from {{s}}.projector_layout), 0, 0, $6, $5 \
                 from {{s}}.projector_versions \
                 where projection = $1 and version = $2 and state <> 'retired' and digest = $7 for key share \
                 on conflict do nothing returning {COLUMNS}"
            ));
        let parameters =
            row_of(claim).and(&*claim.instance.0).and(claim.topic_id.as_deref()).and(&*claim.digest);
        work.rows(&insert, parameters).await?
    };
    if let Some(row) = owned.first() {
        return Ok(Claimed::Owned(position_row(row)?));
    }
    let version = store.sql(
        "select from {s}.projector_versions \
         where projection = $1 and version = $2 and state <> 'retired' and digest = $3",
    );
    let parameters = Parameters::new()
        .and(&*claim.version.projection)
        .and(number(claim.version.version))
        .and(&*claim.digest);
    let known = !work.rows(&version, parameters).await?.is_empty();
    Ok(if known { Claimed::Lost } else { Claimed::Gone })
}

fn row_of(claim: &ClaimRequest) -> Parameters {
    Parameters::new()
        .and(&*claim.version.projection)
        .and(number(claim.version.version))
        .and(&*claim.partition.topic)
        .and(claim.partition.partition)
}

fn position_row(row: &PgRow) -> Result<PositionRow, StoreError> {
    let reason: Option<String> = get(row, 6)?;
    let detail: Option<String> = get(row, 7)?;
    Ok(PositionRow {
        fence: Fence {
            position: NextOffset::new(get(row, 0)?),
            epoch: Epoch::new(get(row, 1)?),
            revision: Revision::new(get(row, 2)?),
        },
        boundary: NextOffset::new(get(row, 3)?),
        topic_id: get(row, 4)?,
        leader_epoch: get(row, 5)?,
        quarantine: reason.map(|reason| Quarantine { reason, detail: detail.unwrap_or_default() }),
    })
}

/// A column of an answer.
pub(super) fn get<'r, T>(row: &'r PgRow, index: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(index).map_err(|_| bug("read an answer", format!("column {index} has another type")))
}

pub(super) async fn outcome(
    store: &PostgresStore,
    version: &VersionKey,
    expected: &[Advance],
) -> Result<Vec<Outcome>, StoreError> {
    let mut work =
        Work::begin(&store.connections, Purpose::Other, "decide an unknown COMMIT", store.claim_limits())
            .await?;
    let outcome = outcome_in(store, &mut work, version, expected).await;
    work.end(outcome).await
}

async fn outcome_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    version: &VersionKey,
    expected: &[Advance],
) -> Result<Vec<Outcome>, StoreError> {
    // The lock waits for a transaction of the lost connection that the server has not ended yet.
    let sql = store.sql(
        "select a.n, p.epoch, p.revision from {s}.projector_positions as p \
         join unnest($3::text[], $4::int4[]) with ordinality as a(topic, partition, n) \
           on p.topic = a.topic and p.partition = a.partition \
         where p.projection = $1 and p.version = $2 order by a.n for update of p",
    );
    let parameters = Parameters::new()
        .and(&*version.projection)
        .and(number(version.version))
        .and(expected.iter().map(|a| a.partition.topic.to_string()).collect::<Vec<_>>())
        .and(expected.iter().map(|a| a.partition.partition).collect::<Vec<_>>());
    let mut outcomes = vec![Outcome::Fenced; expected.len()];
    for row in work.rows(&sql, parameters).await? {
        let (n, epoch, revision): (i64, i64, i64) = (get(&row, 0)?, get(&row, 1)?, get(&row, 2)?);
        let index = usize::try_from(n - 1).unwrap_or(usize::MAX);
        let (Some(advance), Some(outcome)) = (expected.get(index), outcomes.get_mut(index)) else {
            return Err(bug("decide an unknown COMMIT", "a row that was not asked for"));
        };
        if epoch == advance.expected.epoch.get() {
            *outcome = match revision - advance.expected.revision.get() {
                0 => Outcome::NotApplied,
                1 => Outcome::Applied,
                _ => Outcome::Fenced,
            };
        }
    }
    Ok(outcomes)
}
