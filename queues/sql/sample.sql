-- Note what has changed since the last sample, in the busiest queues and in all together (queue 0); the first sample is
-- only what later ones are compared with. Nothing is written twice for one minute. The caller has the turn. Returns the
-- rows.
with moment as materialized (
    select now() as at, before from (values (1)) as one
        left join (select at as before from queues_samplemark where queue = 0) as last on true
    where before is null or date_trunc('minute', before) < date_trunc('minute', now())
), counted as materialized (
    select q.id as queue, c.ready + coalesce(t.ready, 0) as ready, c.leased + coalesce(t.leased, 0) as leased,
        c.delayed + coalesce(t.delayed, 0) as delayed, c.dead + coalesce(t.dead, 0) as dead,
        c.published + coalesce(t.published, 0) as published, c.settled + coalesce(t.settled, 0) as settled,
        c.completed + coalesce(t.completed, 0) as completed
    from moment, queues_queue q join queues_queuecount c on c.queue_id = q.id left join (
        select queue_id, sum(ready) as ready, sum(leased) as leased, sum(delayed) as delayed, sum(dead) as dead,
            sum(published) as published, sum(settled) as settled, sum(completed) as completed
        from queues_queuetally group by queue_id
    ) as t on t.queue_id = q.id
), compared as materialized (
    select c.*, greatest(c.published - coalesce(m.published, 0), 0) as more_published,
        greatest(c.settled - coalesce(m.settled, 0), 0) as more_settled,
        case when m.queue is null then c.completed else greatest(c.completed - coalesce(m.completed, c.completed), 0)
            end as more_completed,
        greatest(c.dead - coalesce(m.dead, 0), 0) as more_dead,
        (c.ready, c.leased, c.delayed, c.dead, c.published, c.settled)
            is distinct from (m.ready, m.leased, m.delayed, m.dead, m.published, m.settled) as changed
    from counted c left join queues_samplemark m on m.queue = c.queue
), marked as (
    insert into queues_samplemark as m (queue, at, ready, leased, delayed, dead, published, settled, completed)
    select queue, at, ready, leased, delayed, dead, published, settled, completed from compared, moment where changed
    union all select 0, at, 0, 0, 0, 0, 0, 0, 0 from moment
    on conflict (queue) do update set at = excluded.at, ready = excluded.ready, leased = excluded.leased,
        delayed = excluded.delayed, dead = excluded.dead, published = excluded.published, settled = excluded.settled,
        completed = excluded.completed
), forgotten as (
    delete from queues_samplemark m using moment
    where m.queue <> 0 and not exists (select from queues_queue q where q.id = m.queue)
)
insert into queues_queuesample (
    queue, at, seconds, ready, leased, delayed, dead, peak, published, settled, completed, died, database_bytes
)
select queue, date_trunc('minute', at), extract(epoch from at - before), ready, leased, delayed, dead,
    ready + leased + delayed, more_published, more_settled, more_completed, more_dead, null::bigint
from moment, (
    select * from compared where changed order by more_published + more_settled + more_dead desc, queue limit %(most)s
) as busiest where before is not null
union all
select 0, date_trunc('minute', at), extract(epoch from at - before), coalesce(c.ready, 0), coalesce(c.leased, 0),
    coalesce(c.delayed, 0), coalesce(c.dead, 0), coalesce(c.ready + c.leased + c.delayed, 0),
    coalesce(c.published, 0), coalesce(c.settled, 0), coalesce(c.completed, 0), coalesce(c.died, 0),
    pg_database_size(current_database())
from moment, (
    select sum(ready) as ready, sum(leased) as leased, sum(delayed) as delayed, sum(dead) as dead,
        sum(more_published) as published, sum(more_settled) as settled,
        sum(more_completed) as completed, sum(more_dead) as died
    from compared
) as c where before is not null
returning queue
