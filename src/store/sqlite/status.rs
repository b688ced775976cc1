//! Heartbeats, observations, requests of operators, and status.

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row};

use super::connection::Verdict;
use super::errors::own;
use super::layout::NOW;
use super::register::{key_of, state_of};
use crate::position::{Epoch, NextOffset, Revision};
use crate::record::TopicPartition;
use crate::store::{
    InstanceId, InstanceReport, OperatorAction, OperatorRequest, PartitionStatus, Quarantine, ResumeOutcome,
    ResumeRequest, ResumeState, StoreError,
};

/// A heartbeat or an observation older than this counts as none, in microseconds.
const FRESH: &str = "10000000";

pub(super) async fn observe(
    connection: &mut SqliteConnection,
    report: &InstanceReport,
) -> Result<Verdict<Vec<OperatorRequest>>, StoreError> {
    let action = "observe";
    let sql = format!(
        "insert into projector_instances (instance, host, program_version, heartbeat_at, broker_answered_at) \
         values (?1, ?2, ?3, {NOW}, ?4) on conflict (instance) do update set heartbeat_at = excluded.heartbeat_at, \
         broker_answered_at = max(coalesce(excluded.broker_answered_at, 0), coalesce(broker_answered_at, 0))"
    );
    sqlx::query(AssertSqlSafe(sql))
        .bind(&*report.instance.0)
        .bind(&report.host)
        .bind(&report.program_version)
        .bind(report.broker_answered_at)
        .execute(&mut *connection)
        .await
        .map_err(own(action))?;
    let mut requests = Vec::new();
    for seen in &report.observations {
        let sql = format!(
            "insert into projector_observations (projection, version, topic, partition, epoch, instance, readable_end, \
             oldest_pending_at, blocked, observed_at) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, {NOW}) \
             on conflict (projection, version, topic, partition) do update set epoch = excluded.epoch, \
             instance = excluded.instance, readable_end = excluded.readable_end, \
             oldest_pending_at = excluded.oldest_pending_at, blocked = excluded.blocked, \
             observed_at = excluded.observed_at where excluded.epoch >= projector_observations.epoch"
        );
        sqlx::query(AssertSqlSafe(sql))
            .bind(&*seen.version.projection)
            .bind(seen.version.version)
            .bind(&*seen.partition.topic)
            .bind(seen.partition.partition)
            .bind(seen.epoch.get())
            .bind(&*report.instance.0)
            .bind(seen.readable_end.map(NextOffset::get))
            .bind(seen.oldest_pending_at.map(|millis| millis.saturating_mul(1000)))
            .bind(&seen.blocked)
            .execute(&mut *connection)
            .await
            .map_err(own(action))?;
        let row: Option<(String, i64)> = sqlx::query_as(
            "select request, revision from projector_positions where projection = ? and version = ? and topic = ? \
             and partition = ? and epoch = ? and request is not null",
        )
        .bind(&*seen.version.projection)
        .bind(seen.version.version)
        .bind(&*seen.partition.topic)
        .bind(seen.partition.partition)
        .bind(seen.epoch.get())
        .fetch_optional(&mut *connection)
        .await
        .map_err(own(action))?;
        requests.extend(row.map(|(request, revision)| OperatorRequest {
            version: seen.version.clone(),
            partition: seen.partition.clone(),
            revision: Revision::new(revision),
            action: match request.as_str() {
                "resume_with_dead_letter" => OperatorAction::ResumeWithDeadLetter,
                _ => OperatorAction::Resume,
            },
        }));
    }
    Ok(Verdict::Commit(requests))
}

pub(super) async fn sign_off(
    connection: &mut SqliteConnection,
    instance: &InstanceId,
) -> Result<(), StoreError> {
    sqlx::query("delete from projector_instances where instance = ?")
        .bind(&*instance.0)
        .execute(connection)
        .await
        .map(drop)
        .map_err(own("sign off"))
}

pub(super) async fn status(
    connection: &mut SqliteConnection,
    projection: Option<&str>,
) -> Result<Vec<PartitionStatus>, StoreError> {
    let sql = format!(
        "select p.projection, p.version, v.state, p.topic, p.partition, p.position, p.boundary, p.epoch, p.revision, \
         o.readable_end, o.oldest_pending_at, ({NOW} - o.observed_at) / 1e6, \
         coalesce({NOW} - i.heartbeat_at < {FRESH}, 0), o.blocked, p.quarantine_reason, p.quarantine_detail, \
         (select count(*) from projector_dead_letters d where d.projection = p.projection and d.version = p.version \
          and d.topic = p.topic and d.partition = p.partition and d.state = 'open'), \
         (select min(created_at) from projector_dead_letters d where d.projection = p.projection \
          and d.version = p.version and d.topic = p.topic and d.partition = p.partition and d.state = 'open') \
         from projector_positions p \
         join projector_versions v on v.projection = p.projection and v.version = p.version \
         left join projector_observations o on o.projection = p.projection and o.version = p.version \
          and o.topic = p.topic and o.partition = p.partition and o.epoch = p.epoch \
         left join projector_instances i on i.instance = p.owner \
         where ?1 is null or p.projection = ?1 order by p.projection, p.version, p.topic, p.partition"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(projection)
        .fetch_all(connection)
        .await
        .map_err(own("read the status"))?;
    rows.iter()
        .map(|row| {
            let reason: Option<String> = row.get(14);
            let oldest: Option<i64> = row.get(10);
            Ok(PartitionStatus {
                version: key_of(row)?,
                version_state: state_of(row.get(2))?,
                partition: TopicPartition::new(row.get::<String, _>(3), row.get(4)),
                position: NextOffset::new(row.get(5)),
                boundary: NextOffset::new(row.get(6)),
                epoch: Epoch::new(row.get(7)),
                revision: row.get(8),
                readable_end: row.get::<Option<i64>, _>(9).map(NextOffset::new),
                oldest_pending_at: oldest.map(|micros| micros / 1000),
                observed_seconds_ago: row.get(11),
                owner_alive: row.get(12),
                blocked: row.get(13),
                quarantine: reason.map(|reason| Quarantine {
                    reason,
                    detail: row.get::<Option<String>, _>(15).unwrap_or_default(),
                }),
                open_dead_letters: row.get(16),
                oldest_dead_letter_at: row.get(17),
            })
        })
        .collect()
}

pub(super) async fn request_resume(
    connection: &mut SqliteConnection,
    request: &ResumeRequest,
) -> Result<Verdict<Vec<ResumeOutcome>>, StoreError> {
    let action = "ask to resume";
    let mut outcomes = Vec::new();
    for row in status(connection, Some(&request.projection)).await? {
        let Some(why) = &row.quarantine else { continue };
        if request.partition.as_ref().is_some_and(|partition| *partition != row.partition) {
            continue;
        }
        if !why.ends_by_resume() {
            if request.partition.is_none() {
                continue;
            }
            return Err(StoreError::Refused {
                problem: format!(
                    "{} is quarantined for a fault of the log ({}): {}",
                    row.partition, why.reason, why.detail
                ),
                fix: "resuming would lose records without a word; start the version over as it says"
                    .to_owned(),
            });
        }
        let text = match request.action {
            OperatorAction::Resume => "resume",
            OperatorAction::ResumeWithDeadLetter => "resume_with_dead_letter",
        };
        sqlx::query(
            "update projector_positions set request = ? where projection = ? and version = ? and topic = ? \
             and partition = ? and quarantine_reason is not null",
        )
        .bind(text)
        .bind(&*row.version.projection)
        .bind(row.version.version)
        .bind(&*row.partition.topic)
        .bind(row.partition.partition)
        .execute(&mut *connection)
        .await
        .map_err(own(action))?;
        let state = if row.owner_alive { ResumeState::LeftForOwner } else { ResumeState::LeftForNextOwner };
        outcomes.push(ResumeOutcome { partition: row.partition, state });
    }
    Ok(Verdict::Commit(outcomes))
}
