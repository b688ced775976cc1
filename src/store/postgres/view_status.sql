create or replace view {s}.projector_view_status as
with partitions as (
  select
    v.projection, v.version, p.topic, p.partition, p.quarantine_reason, o.readable_end, o.blocked,
    p.position < p.boundary as behind,
    case when o.readable_end is not null then greatest(o.readable_end - p.position, 0) end as lag,
    extract(epoch from statement_timestamp() - o.oldest_pending_at)::double precision as pending_seconds,
    coalesce(o.observed_at >= statement_timestamp() - interval '10 seconds', false)
      and coalesce(i.heartbeat_at >= statement_timestamp() - interval '10 seconds', false) as observed
  from {s}.projector_versions v
  join {s}.projector_positions p on p.projection = v.projection and p.version = v.version
  left join {s}.projector_observations o
    on o.projection = p.projection and o.version = p.version and o.topic = p.topic and o.partition = p.partition
   and o.epoch = p.epoch
  left join {s}.projector_instances i on i.instance = p.owner
), aged as (
  select *,
    case
      when lag = 0 then case when observed then 0 end
      when pending_seconds is not null then greatest(pending_seconds, 0)
    end as age,
    topic || ':' || partition as name
  from partitions
), sums as (
  select projection, version,
    count(*) as partitions,
    count(*) filter (where behind) as behind,
    case when bool_and(lag is not null) then sum(lag)::bigint end as lag,
    case when bool_and(age is not null) then max(age) end as age,
    max(age) as known_age,
    count(*) filter (where quarantine_reason is not null) as quarantined,
    (array_agg(name order by topic, partition) filter (where quarantine_reason is not null))[1] as first_quarantined,
    (array_agg(quarantine_reason order by topic, partition) filter (where quarantine_reason is not null))[1]
      as quarantine_reason,
    count(*) filter (where quarantine_reason is null and not observed) as unobserved,
    (array_agg(name order by topic, partition) filter (where quarantine_reason is null and not observed))[1]
      as first_unobserved,
    (array_agg(name order by topic, partition) filter (where readable_end is null))[1] as first_unknown,
    (array_agg(blocked order by topic, partition) filter (where readable_end is null))[1] as unknown_reason,
    count(*) filter (where blocked is not null) as blocked,
    (array_agg(name order by topic, partition) filter (where blocked is not null))[1] as first_blocked,
    (array_agg(blocked order by topic, partition) filter (where blocked is not null))[1] as blocked_reason
  from aged
  group by projection, version
), judged as (
  select v.projection, v.version, v.declaration, v.staleness_limit_seconds, s.lag, s.age,
    case
      when s.partitions is null then 'unavailable'
      when s.quarantined > 0 then 'quarantined'
      when s.unobserved > 0 or s.first_unknown is not null then 'unavailable'
      when v.state <> 'live' or s.known_age > v.staleness_limit_seconds then 'catching_up'
      else 'ready'
    end as state,
    case
      when s.partitions is null then 'the version has no partitions'
      when s.quarantined > 0 then format('partition %s%s is quarantined: %s', s.first_quarantined,
        case when s.quarantined > 1 then format(' and %s more', s.quarantined - 1) else '' end, s.quarantine_reason)
      when s.unobserved > 0 then format('nobody observes partition %s%s', s.first_unobserved,
        case when s.unobserved > 1 then format(' and %s more', s.unobserved - 1) else '' end)
      when s.first_unknown is not null then
        format('the end of partition %s is not known: %s', s.first_unknown,
          coalesce(s.unknown_reason, 'the broker does not answer'))
      when v.state <> 'live' and s.behind = 0 and s.blocked > 0 then
        format('not live yet: partition %s%s is blocked: %s', s.first_blocked,
          case when s.blocked > 1 then format(' and %s more', s.blocked - 1) else '' end, s.blocked_reason)
      when v.state <> 'live' then
        format('being built: partitions that have not reached their boundary: %s of %s', s.behind, s.partitions)
      when s.known_age > v.staleness_limit_seconds then
        format('the oldest event that is not applied is %s s old; the limit is %s s',
          round(s.known_age), round(v.staleness_limit_seconds))
      when s.blocked > 0 then format('partition %s%s is blocked: %s', s.first_blocked,
        case when s.blocked > 1 then format(' and %s more', s.blocked - 1) else '' end, s.blocked_reason)
    end as reason
  from {s}.projector_versions v
  left join sums s on s.projection = v.projection and s.version = v.version
  where v.state <> 'retired'
)
select w.view, j.projection, j.version, j.state, j.reason, j.lag as lag_records, j.age as age_seconds,
  j.staleness_limit_seconds,
  (select count(*) from {s}.projector_dead_letters d
    where d.projection = j.projection and d.version = j.version and d.state = 'open') as open_dead_letters,
  statement_timestamp() as as_of
from judged j
cross join lateral jsonb_array_elements_text(j.declaration::jsonb -> 'views') as w(view)
