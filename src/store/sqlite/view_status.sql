create view projector_view_status as
with clock as (
  select {now} as now
), partitions as (
  select
    v.projection, v.version, p.topic, p.partition, p.topic || ':' || p.partition as name,
    p.quarantine_reason, o.readable_end, o.blocked,
    p.position < p.boundary as behind,
    max(o.readable_end - p.position, 0) as lag,
    max((c.now - o.oldest_pending_at) / 1000000.0, 0.0) as pending_seconds,
    coalesce(o.observed_at >= c.now - 10000000, 0) and coalesce(i.heartbeat_at >= c.now - 10000000, 0) as observed
  from clock c
  cross join projector_versions v
  join projector_positions p on p.projection = v.projection and p.version = v.version
  left join projector_observations o
    on o.projection = p.projection and o.version = p.version and o.topic = p.topic and o.partition = p.partition
   and o.epoch = p.epoch
  left join projector_instances i on i.instance = p.owner
), aged as (
  select *,
    case when lag = 0 then case when observed then 0.0 end else pending_seconds end as age
  from partitions
), sums as (
  select projection, version,
    count(*) as partitions,
    sum(behind) as behind,
    case when count(lag) = count(*) then sum(lag) end as lag,
    case when count(age) = count(*) then max(age) end as age,
    max(age) as known_age,
    count(quarantine_reason) as quarantined,
    count(*) filter (where quarantine_reason is null and not observed) as unobserved,
    count(*) filter (where readable_end is null) as unknown,
    count(blocked) as blocked
  from aged
  group by projection, version
), firsts as (
  select v.*, s.partitions, s.behind, s.lag, s.age, s.known_age, s.quarantined, s.unobserved, s.unknown, s.blocked,
    (select a.name || case when s.quarantined > 1 then ' and ' || (s.quarantined - 1) || ' more' else '' end
        || ' is quarantined: ' || a.quarantine_reason
      from aged a where a.projection = v.projection and a.version = v.version and a.quarantine_reason is not null
      order by a.topic, a.partition limit 1) as quarantine,
    (select a.name || case when s.unobserved > 1 then ' and ' || (s.unobserved - 1) || ' more' else '' end
      from aged a where a.projection = v.projection and a.version = v.version
        and a.quarantine_reason is null and not a.observed
      order by a.topic, a.partition limit 1) as first_unobserved,
    (select a.name || ' is not known: ' || coalesce(a.blocked, 'the broker does not answer') from aged a
      where a.projection = v.projection and a.version = v.version and a.readable_end is null
      order by a.topic, a.partition limit 1) as first_unknown,
    (select a.name || case when s.blocked > 1 then ' and ' || (s.blocked - 1) || ' more' else '' end
        || ' is blocked: ' || a.blocked
      from aged a where a.projection = v.projection and a.version = v.version and a.blocked is not null
      order by a.topic, a.partition limit 1) as first_blocked
  from projector_versions v
  left join sums s on s.projection = v.projection and s.version = v.version
  where v.state <> 'retired'
)
select w.value as view, f.projection, f.version,
  case
    when f.partitions is null then 'unavailable'
    when f.quarantined > 0 then 'quarantined'
    when f.unobserved > 0 or f.unknown > 0 then 'unavailable'
    when f.state <> 'live' or f.known_age > f.staleness_limit_seconds then 'catching_up'
    else 'ready'
  end as state,
  case
    when f.partitions is null then 'the version has no partitions'
    when f.quarantined > 0 then 'partition ' || f.quarantine
    when f.unobserved > 0 then 'nobody observes partition ' || f.first_unobserved
    when f.unknown > 0 then 'the end of partition ' || f.first_unknown
    when f.state <> 'live' and f.behind = 0 and f.blocked > 0 then 'not live yet: partition ' || f.first_blocked
    when f.state <> 'live' then
      'being built: partitions that have not reached their boundary: ' || f.behind || ' of ' || f.partitions
    when f.known_age > f.staleness_limit_seconds then
      'the oldest event that is not applied is ' || cast(round(f.known_age) as integer)
        || ' s old; the limit is ' || cast(round(f.staleness_limit_seconds) as integer) || ' s'
    when f.blocked > 0 then 'partition ' || f.first_blocked
  end as reason,
  f.lag as lag_records, f.age as age_seconds, f.staleness_limit_seconds,
  (select count(*) from projector_dead_letters d
    where d.projection = f.projection and d.version = f.version and d.state = 'open') as open_dead_letters,
  (select now from clock) as as_of
from firsts f
cross join json_each(f.declaration, '$.views') as w
