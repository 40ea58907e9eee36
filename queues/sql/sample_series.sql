-- Samples of some queues in `places` periods of so many seconds, the last of which ends at `until`: by queue and period
-- (0 is the first, -1 the last sample before it). Periods without a sample are left out.
select s.queue,
    least(floor((extract(epoch from s.at) - %(start)s::float8 - 1) / %(width)s::int), %(places)s::int - 1)::int as place,
    sum(s.seconds)::float8, sum(s.published)::bigint, sum(s.settled)::bigint, sum(s.completed)::bigint,
    sum(s.died)::bigint, max(s.peak),
    (array_agg(s.ready order by s.at desc))[1], (array_agg(s.leased order by s.at desc))[1],
    (array_agg(s.delayed order by s.at desc))[1], (array_agg(s.dead order by s.at desc))[1],
    (array_agg(s.database_bytes order by s.at desc))[1]
from queues_queuesample s
where s.queue = any(%(queues)s::int[]) and s.at > to_timestamp(%(start)s::float8)
    and s.at <= to_timestamp(%(start)s::float8 + %(width)s::int * %(places)s::int)
group by 1, 2
union all
select q.id, -1, last.seconds, last.published, last.settled, last.completed, last.died, last.peak,
    last.ready, last.leased, last.delayed, last.dead, last.database_bytes
from unnest(%(queues)s::int[]) as q (id), lateral (
    select * from queues_queuesample s where s.queue = q.id and s.at <= to_timestamp(%(start)s::float8)
    order by s.queue desc, s.at desc limit 1
) as last
