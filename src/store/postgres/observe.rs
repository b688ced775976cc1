//! What instances report, what operators ask, and the status that both make.

use super::PostgresStore;
use super::connections::Purpose;
use super::errors::bug;
use super::positions::{get, number, without_nul};
use super::register::{state, version_key};
use super::work::{Parameters, Work};
use crate::position::{Epoch, NextOffset, Revision};
use crate::record::TopicPartition;
use crate::store::sql;
use crate::store::{
    InstanceId, InstanceReport, Observed, OperatorRequest, PartitionStatus, Quarantine, ResumeOutcome,
    ResumeRequest, ResumeState, StoreError,
};

/// A heartbeat that is older, in seconds, is that of an instance which has ended.
const FRESH_SECONDS: i32 = 10;

/// Years 1 to 9999, in milliseconds since 1970-01-01 UTC: what is shown of a time, whatever a producer wrote.
const TIMES: (i64, i64) = (-62_135_596_800_000, 253_402_300_799_000);

pub(super) async fn observe(store: &PostgresStore, report: &InstanceReport) -> Result<Observed, StoreError> {
    let limits = store.claim_limits();
    let mut work = Work::begin(&store.connections, Purpose::Other, "report observations", limits).await?;
    let done = observe_in(store, &mut work, report).await;
    work.end(done).await
}

async fn observe_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    report: &InstanceReport,
) -> Result<Observed, StoreError> {
    let heartbeat = store.sql(
        "insert into {s}.projector_instances (instance, host, program_version, heartbeat_at, broker_answered_at) \
         values ($1, $2, $3, now(), timestamptz 'epoch' + $4::int8 * interval '1 millisecond') \
         on conflict (instance) do update set host = excluded.host, program_version = excluded.program_version, \
           heartbeat_at = excluded.heartbeat_at, broker_answered_at = excluded.broker_answered_at",
    );
    let answered = report.broker_answered_at.map(|micros| shown(micros / 1000));
    let parameters = Parameters::new()
        .and(&*report.instance.0)
        .and(&*report.host)
        .and(&*report.program_version)
        .and(answered);
    work.run(&heartbeat, parameters).await?;
    let mut observations: Vec<_> = report.observations.iter().collect();
    if observations.is_empty() {
        return Ok(Observed::default());
    }
    // By key, like every instance: two of them that report the same partition never wait for each other in a circle.
    observations.sort_by(|a, b| (&a.version, &a.partition).cmp(&(&b.version, &b.partition)));
    observations.dedup_by(|a, b| a.version == b.version && a.partition == b.partition);
    let write = store.sql(
        "insert into {s}.projector_observations as o \
           (projection, version, topic, partition, epoch, instance, readable_end, oldest_pending_at, blocked, observed_at) \
         select a.projection, a.version, a.topic, a.partition, a.epoch, $1, a.readable_end, \
           timestamptz 'epoch' + a.oldest * interval '1 millisecond', a.blocked, now() \
         from unnest($2::text[], $3::int4[], $4::text[], $5::int4[], $6::int8[], $7::int8[], $8::int8[], $9::text[]) \
              with ordinality as a(projection, version, topic, partition, epoch, readable_end, oldest, blocked, n) \
         where exists (select from {s}.projector_positions p where p.projection = a.projection \
           and p.version = a.version and p.topic = a.topic and p.partition = a.partition) \
         order by a.n \
         on conflict (projection, version, topic, partition) do update set epoch = excluded.epoch, \
           instance = excluded.instance, readable_end = excluded.readable_end, \
           oldest_pending_at = excluded.oldest_pending_at, blocked = excluded.blocked, \
           observed_at = excluded.observed_at \
         where o.epoch <= excluded.epoch",
    );
    let keys = || {
        (
            observations.iter().map(|o| o.version.projection.to_string()).collect::<Vec<_>>(),
            observations.iter().map(|o| number(o.version.version)).collect::<Vec<_>>(),
            observations.iter().map(|o| o.partition.topic.to_string()).collect::<Vec<_>>(),
            observations.iter().map(|o| o.partition.partition).collect::<Vec<_>>(),
        )
    };
    let (projections, versions, topics, partitions) = keys();
    let parameters = Parameters::new()
        .and(&*report.instance.0)
        .and(projections)
        .and(versions)
        .and(topics)
        .and(partitions)
        .and(observations.iter().map(|o| o.epoch.get()).collect::<Vec<_>>())
        .and(observations.iter().map(|o| o.readable_end.map(NextOffset::get)).collect::<Vec<_>>())
        .and(observations.iter().map(|o| o.oldest_pending_at.map(shown)).collect::<Vec<_>>())
        .and(observations.iter().map(|o| o.blocked.as_deref().map(without_nul)).collect::<Vec<_>>());
    work.run(&write, parameters).await?;
    let (projections, versions, topics, partitions) = keys();
    let owned = store.sql(
        "select a.n, p.revision, p.request \
         from unnest($1::text[], $2::int4[], $3::text[], $4::int4[], $5::int8[]) \
              with ordinality as a(projection, version, topic, partition, epoch, n) \
         left join {s}.projector_positions p on p.projection = a.projection and p.version = a.version \
           and p.topic = a.topic and p.partition = a.partition and p.epoch = a.epoch \
         where p.request is not null or p.revision is null order by a.n",
    );
    let parameters = Parameters::new()
        .and(projections)
        .and(versions)
        .and(topics)
        .and(partitions)
        .and(observations.iter().map(|o| o.epoch.get()).collect::<Vec<_>>());
    let mut observed = Observed::default();
    for row in work.rows(&owned, parameters).await? {
        let about = usize::try_from(get::<i64>(&row, 0)? - 1).ok().and_then(|index| observations.get(index));
        let about = about.ok_or_else(|| bug("read requests", "a row that was not asked for"))?;
        let (version, partition) = (about.version.clone(), about.partition.clone());
        match get::<Option<i64>>(&row, 1)? {
            None => observed.lost.push((version, partition, about.epoch)),
            Some(revision) => observed.requests.push(OperatorRequest {
                version,
                partition,
                revision: Revision::new(revision),
                action: sql::action(&get::<String>(&row, 2)?)
                    .ok_or_else(|| bug("read requests", "a request of another name"))?,
            }),
        }
    }
    Ok(observed)
}

fn shown(millis: i64) -> i64 {
    millis.clamp(TIMES.0, TIMES.1)
}

pub(super) async fn sign_off(store: &PostgresStore, instance: &InstanceId) -> Result<(), StoreError> {
    let mut work = Work::begin(&store.connections, Purpose::Other, "sign off", store.claim_limits()).await?;
    let sql = store.sql("delete from {s}.projector_instances where instance = $1");
    let done = work.run(&sql, Parameters::new().and(&*instance.0)).await;
    work.end(done).await.map(drop)
}

pub(super) async fn status(
    store: &PostgresStore,
    projection: Option<&str>,
) -> Result<Vec<PartitionStatus>, StoreError> {
    let sql = store.sql(
        "select p.projection, p.version, v.state, p.topic, p.partition, p.position, p.boundary, p.epoch, p.revision, \
           o.readable_end, (extract(epoch from o.oldest_pending_at) * 1000)::int8, \
           extract(epoch from now() - o.observed_at)::float8, \
           coalesce(i.heartbeat_at >= now() - $2 * interval '1 second', false), o.blocked, p.quarantine_reason, \
           p.quarantine_detail, coalesce(d.letters, 0), (extract(epoch from d.oldest) * 1000000)::int8, p.topic_id, p.request is not null \
         from {s}.projector_positions p \
         join {s}.projector_versions v on v.projection = p.projection and v.version = p.version \
         left join {s}.projector_observations o on o.projection = p.projection and o.version = p.version \
           and o.topic = p.topic and o.partition = p.partition and o.epoch = p.epoch \
         left join {s}.projector_instances i on i.instance = p.owner \
         left join (select projection, version, topic, partition, count(*) as letters, min(created_at) as oldest \
             from {s}.projector_dead_letters where state = 'open' group by 1, 2, 3, 4) d \
           on d.projection = p.projection and d.version = p.version and d.topic = p.topic and d.partition = p.partition \
         where $1::text is null or p.projection = $1 \
         order by p.projection, p.version, p.topic, p.partition",
    );
    let mut work =
        Work::begin(&store.connections, Purpose::Other, "read status", store.claim_limits()).await?;
    let rows = work.rows(&sql, Parameters::new().and(projection).and(FRESH_SECONDS)).await;
    work.end(rows).await?.iter().map(partition_status).collect()
}

fn partition_status(row: &sqlx::postgres::PgRow) -> Result<PartitionStatus, StoreError> {
    let reason: Option<String> = get(row, 14)?;
    let detail: Option<String> = get(row, 15)?;
    Ok(PartitionStatus {
        version: version_key(row, 0)?,
        version_state: state(&get::<String>(row, 2)?)?,
        partition: TopicPartition::new(get::<String>(row, 3)?, get(row, 4)?),
        topic_id: get(row, 18)?,
        position: NextOffset::new(get(row, 5)?),
        boundary: NextOffset::new(get(row, 6)?),
        epoch: Epoch::new(get(row, 7)?),
        revision: get(row, 8)?,
        readable_end: get::<Option<i64>>(row, 9)?.map(NextOffset::new),
        oldest_pending_at: get(row, 10)?,
        observed_seconds_ago: get(row, 11)?,
        owner_alive: get(row, 12)?,
        blocked: get(row, 13)?,
        quarantine: reason.map(|reason| Quarantine { reason, detail: detail.unwrap_or_default() }),
        is_resume_requested: get(row, 19)?,
        open_dead_letters: get(row, 16)?,
        oldest_dead_letter_at: get(row, 17)?,
    })
}

pub(super) async fn request_resume(
    store: &PostgresStore,
    request: &ResumeRequest,
) -> Result<Vec<ResumeOutcome>, StoreError> {
    let limits = store.claim_limits();
    let mut work = Work::begin(&store.connections, Purpose::Other, "request a resume", limits).await?;
    let done = request_resume_in(store, &mut work, request).await;
    work.end(done).await
}

async fn request_resume_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    request: &ResumeRequest,
) -> Result<Vec<ResumeOutcome>, StoreError> {
    let select = store.sql(
        "select p.version, p.topic, p.partition, p.quarantine_reason, \
           exists (select from {s}.projector_instances i \
             where i.instance = p.owner and i.heartbeat_at >= now() - $4 * interval '1 second') \
         from {s}.projector_positions p \
         join {s}.projector_versions v on v.projection = p.projection and v.version = p.version \
         where p.projection = $1 and v.state <> 'retired' and p.quarantine_reason is not null \
           and ($2::text is null or p.topic = $2 and p.partition = $3) and ($5::int4 is null or p.version = $5) \
         order by p.version, p.topic, p.partition for update of p",
    );
    let parameters = Parameters::new()
        .and(&*request.projection)
        .and(request.partition.as_ref().map(|partition| partition.topic.to_string()))
        .and(request.partition.as_ref().map(|partition| partition.partition))
        .and(FRESH_SECONDS)
        .and(request.version.map(number));
    let rows = work.rows(&select, parameters).await?;
    let update = store.sql(
        "update {s}.projector_positions set request = $5 \
         where projection = $1 and version = $2 and topic = $3 and partition = $4",
    );
    let mut outcomes = Vec::new();
    let mut refusal = None;
    for row in &rows {
        let (version, topic, number): (i32, String, i32) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        let partition = TopicPartition::new(topic, number);
        let why = Quarantine { reason: get(row, 3)?, detail: String::new() };
        if !why.ends_by_resume() {
            refusal.get_or_insert_with(|| StoreError::Refused {
                problem: format!(
                    "partition {partition} is quarantined for {}, which resume does not end",
                    why.reason
                ),
                fix: format!(
                    "start over with `projector retire {}@{version} --execute`, so that the log is read anew",
                    request.projection
                ),
            });
            continue;
        }
        let parameters = Parameters::new()
            .and(&*request.projection)
            .and(version)
            .and(&*partition.topic)
            .and(partition.partition)
            .and(sql::action_name(request.action));
        work.run(&update, parameters).await?;
        let is_owned: bool = get(row, 4)?;
        let state = if is_owned { ResumeState::LeftForOwner } else { ResumeState::LeftForNextOwner };
        outcomes.push(ResumeOutcome { partition, state });
    }
    match refusal {
        Some(refusal) if outcomes.is_empty() => Err(refusal),
        _ => Ok(outcomes),
    }
}
