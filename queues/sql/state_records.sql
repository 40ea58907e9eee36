-- Faults of audit chains and ETL, as (kind, id, name, text): chains whose last verification found them broken,
-- schedules that have not begun for so many minutes, the newest run if it failed or was lost, and how many
-- subscriptions will end for want of a poll and when the first of them does, `idle` days without one allowed (0: ever).
(select 'chain', c.id, c.name, v.finding from queues_auditchain c, lateral (
    select ok, finding from queues_auditverification where chain_id = c.id order by at desc, id desc limit 1
) as v where not v.ok limit %(most)s)
union all
(select 'schedule', s.id, s.name, to_char(s.next_run_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC'
from queues_etlschedule s
where s.enabled and s.next_run_at < now() - make_interval(mins => %(minutes)s) limit %(most)s)
union all
(select 'run', r.id, r.state, left(r.error, 300) from (select * from queues_etlrun order by id desc limit 1) as r
where r.state in ('failed', 'lost'))
union all
(select 'idle', count(*)::int, '', to_char(min(ends_at) at time zone 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC'
from queues_subscription where ends_at is not null and %(idle)s > 0 having count(*) > 0)
