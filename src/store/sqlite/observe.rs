//! What instances report, what operators ask, and the status that both make.

use sqlx::sqlite::SqliteRow;

use super::connections::{Connections, Parameters, Purpose, Work};
use super::errors::bug;
use super::layout::NOW;
use super::positions::{get, key, partition, version_key, without_nul};
use super::register::state;
use crate::position::{Epoch, NextOffset, Revision};
use crate::store::{
    InstanceId, InstanceReport, Observation, Observed, OperatorRequest, PartitionStatus, Quarantine,
    ResumeOutcome, ResumeRequest, ResumeState, StoreError, sql,
};

/// A heartbeat that is older, in microseconds, is that of an instance which has ended.
const FRESH: &str = "10000000";

/// Years 1 to 9999, in milliseconds since 1970-01-01 UTC: what is shown of a time, whatever a producer wrote.
const TIMES: (i64, i64) = (-62_135_596_800_000, 253_402_300_799_000);

pub(super) async fn observe(
    connections: &Connections,
    report: &InstanceReport,
) -> Result<Observed, StoreError> {
    let mut work = Work::begin(connections, Purpose::Write, "report observations").await?;
    let done = observe_in(&mut work, report).await;
    work.end(done).await
}

async fn observe_in(work: &mut Work<'_>, report: &InstanceReport) -> Result<Observed, StoreError> {
    let heartbeat = format!(
        "insert into projector_instances (instance, host, program_version, heartbeat_at, broker_answered_at) \
         values (?1, ?2, ?3, {NOW}, ?4) \
         on conflict (instance) do update set host = excluded.host, program_version = excluded.program_version, \
           heartbeat_at = excluded.heartbeat_at, broker_answered_at = excluded.broker_answered_at"
    );
    let parameters = Parameters::new()
        .and(&*report.instance.0)
        .and(&*report.host)
        .and(&*report.program_version)
        .and(report.broker_answered_at);
    work.run(&heartbeat, parameters).await?;
    let mut observed = Observed::default();
    for seen in &report.observations {
        write(work, &report.instance, seen).await?;
        look(work, seen, &mut observed).await?;
    }
    Ok(observed)
}

async fn write(work: &mut Work<'_>, instance: &InstanceId, seen: &Observation) -> Result<(), StoreError> {
    let sql = format!(
        "insert into projector_observations \
           (projection, version, topic, partition, epoch, instance, readable_end, oldest_pending_at, blocked, observed_at) \
         select ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, {NOW} from projector_positions \
         where projection = ?1 and version = ?2 and topic = ?3 and partition = ?4 \
         on conflict (projection, version, topic, partition) do update set epoch = excluded.epoch, \
           instance = excluded.instance, readable_end = excluded.readable_end, \
           oldest_pending_at = excluded.oldest_pending_at, blocked = excluded.blocked, \
           observed_at = excluded.observed_at \
         where epoch <= excluded.epoch"
    );
    let pending = seen.oldest_pending_at.map(|millis| millis.clamp(TIMES.0, TIMES.1) * 1000);
    let parameters = key(&seen.version, &seen.partition)
        .and(seen.epoch.get())
        .and(&*instance.0)
        .and(seen.readable_end.map(NextOffset::get))
        .and(pending)
        .and(seen.blocked.as_deref().map(without_nul));
    work.run(&sql, parameters).await.map(drop)
}

/// Whether the observer still owns the partition, and what an operator asks of it.
async fn look(work: &mut Work<'_>, seen: &Observation, observed: &mut Observed) -> Result<(), StoreError> {
    let select = "select request, revision from projector_positions where projection = ?1 and version = ?2 \
           and topic = ?3 and partition = ?4 and epoch = ?5";
    let rows = work.rows(select, key(&seen.version, &seen.partition).and(seen.epoch.get())).await?;
    let (version, partition) = (seen.version.clone(), seen.partition.clone());
    let Some(row) = rows.first() else {
        observed.lost.push((version, partition, seen.epoch));
        return Ok(());
    };
    if let Some(request) = get::<Option<String>>(row, 0)? {
        let action =
            sql::action(&request).ok_or_else(|| bug("read requests", "a request of another name"))?;
        let revision = Revision::new(get(row, 1)?);
        observed.requests.push(OperatorRequest { version, partition, revision, action });
    }
    Ok(())
}

pub(super) async fn sign_off(connections: &Connections, instance: &InstanceId) -> Result<(), StoreError> {
    let mut work = Work::begin(connections, Purpose::Write, "sign off").await?;
    let sql = "delete from projector_instances where instance = ?1";
    let done = work.run(sql, Parameters::new().and(&*instance.0)).await;
    work.end(done).await.map(drop)
}

pub(super) async fn status(
    connections: &Connections,
    projection: Option<&str>,
) -> Result<Vec<PartitionStatus>, StoreError> {
    let sql = format!(
        "select p.projection, p.version, v.state, p.topic, p.partition, p.position, p.boundary, p.epoch, p.revision, \
           o.readable_end, o.oldest_pending_at, max(({NOW} - o.observed_at) / 1000000.0, 0.0), \
           coalesce(i.heartbeat_at >= {NOW} - {FRESH}, 0), o.blocked, p.quarantine_reason, p.quarantine_detail, \
           coalesce(d.letters, 0), d.oldest, p.topic_id, p.request is not null \
         from projector_positions p \
         join projector_versions v on v.projection = p.projection and v.version = p.version \
         left join projector_observations o on o.projection = p.projection and o.version = p.version \
           and o.topic = p.topic and o.partition = p.partition and o.epoch = p.epoch \
         left join projector_instances i on i.instance = p.owner \
         left join (select projection, version, topic, partition, count(*) as letters, min(created_at) as oldest \
             from projector_dead_letters where state = 'open' group by 1, 2, 3, 4) d \
           on d.projection = p.projection and d.version = p.version and d.topic = p.topic and d.partition = p.partition \
         where ?1 is null or p.projection = ?1 \
         order by p.projection, p.version, p.topic, p.partition"
    );
    let mut work = Work::begin(connections, Purpose::Read, "read status").await?;
    let rows = work.rows(&sql, Parameters::new().and(projection)).await;
    work.end(rows).await?.iter().map(partition_status).collect()
}

fn partition_status(row: &SqliteRow) -> Result<PartitionStatus, StoreError> {
    let detail: Option<String> = get(row, 15)?;
    Ok(PartitionStatus {
        version: version_key(row, 0)?,
        version_state: state(row, 2)?,
        partition: partition(row, 3)?,
        topic_id: get(row, 18)?,
        position: NextOffset::new(get(row, 5)?),
        boundary: NextOffset::new(get(row, 6)?),
        epoch: Epoch::new(get(row, 7)?),
        revision: get(row, 8)?,
        readable_end: get::<Option<i64>>(row, 9)?.map(NextOffset::new),
        oldest_pending_at: get::<Option<i64>>(row, 10)?.map(|micros| micros.div_euclid(1000)),
        observed_seconds_ago: get(row, 11)?,
        owner_alive: get::<i64>(row, 12)? != 0,
        blocked: get(row, 13)?,
        quarantine: get::<Option<String>>(row, 14)?
            .map(|reason| Quarantine { reason, detail: detail.unwrap_or_default() }),
        is_resume_requested: get::<i64>(row, 19)? != 0,
        open_dead_letters: get(row, 16)?,
        oldest_dead_letter_at: get(row, 17)?,
    })
}

pub(super) async fn request_resume(
    connections: &Connections,
    request: &ResumeRequest,
) -> Result<Vec<ResumeOutcome>, StoreError> {
    let mut work = Work::begin(connections, Purpose::Write, "request a resume").await?;
    let done = request_resume_in(&mut work, request).await;
    work.end(done).await
}

async fn request_resume_in(
    work: &mut Work<'_>,
    request: &ResumeRequest,
) -> Result<Vec<ResumeOutcome>, StoreError> {
    let select = format!(
        "select p.projection, p.version, p.topic, p.partition, p.quarantine_reason, \
           exists (select 1 from projector_instances i \
             where i.instance = p.owner and i.heartbeat_at >= {NOW} - {FRESH}) \
         from projector_positions p \
         join projector_versions v on v.projection = p.projection and v.version = p.version \
         where p.projection = ?1 and v.state <> 'retired' and p.quarantine_reason is not null \
           and (?2 is null or (p.topic = ?2 and p.partition = ?3)) and (?4 is null or p.version = ?4) \
         order by p.version, p.topic, p.partition"
    );
    let parameters = Parameters::new()
        .and(&*request.projection)
        .and(request.partition.as_ref().map(|partition| &*partition.topic))
        .and(request.partition.as_ref().map(|partition| partition.partition))
        .and(request.version);
    let rows = work.rows(&select, parameters).await?;
    let update = "update projector_positions set request = ?5 \
                  where projection = ?1 and version = ?2 and topic = ?3 and partition = ?4";
    let mut outcomes = Vec::new();
    let mut refusal = None;
    for row in &rows {
        let (version, partition) = (version_key(row, 0)?, partition(row, 2)?);
        let why = Quarantine { reason: get(row, 4)?, detail: String::new() };
        if !why.ends_by_resume() {
            refusal.get_or_insert_with(|| StoreError::Refused {
                problem: format!(
                    "partition {partition} is quarantined for {}, which resume does not end",
                    why.reason
                ),
                fix: format!(
                    "start over with `projector retire {version} --execute`, so that the log is read anew"
                ),
            });
            continue;
        }
        let parameters = key(&version, &partition).and(sql::action_name(request.action));
        work.run(update, parameters).await?;
        let is_owned = get::<i64>(row, 5)? != 0;
        let state = if is_owned { ResumeState::LeftForOwner } else { ResumeState::LeftForNextOwner };
        outcomes.push(ResumeOutcome { partition, state });
    }
    match refusal {
        Some(refusal) if outcomes.is_empty() => Err(refusal),
        _ => Ok(outcomes),
    }
}
