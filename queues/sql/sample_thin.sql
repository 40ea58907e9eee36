-- Make one sample an hour of those that are older than so many hours. The caller has the turn.
with old as (
    delete from queues_queuesample
    where not hourly and at <= date_trunc('hour', now() - make_interval(hours => %(hours)s), 'UTC') returning *
)
insert into queues_queuesample (
    queue, at, hourly, seconds, ready, leased, delayed, dead, peak, published, settled, completed, died, database_bytes
)
select queue, date_trunc('hour', at - interval '1 second', 'UTC') + interval '1 hour', true, sum(seconds),
    (array_agg(ready order by at desc))[1], (array_agg(leased order by at desc))[1],
    (array_agg(delayed order by at desc))[1], (array_agg(dead order by at desc))[1],
    max(peak), sum(published), sum(settled), sum(completed), sum(died),
    (array_agg(database_bytes order by at desc))[1]
from old group by 1, 2
returning queue
