-- Queues with their counts, how many nodes serve them, what the last sample saw of them and when, for rates since then.
-- One row a queue; null asks for all. With `since`, a transaction's number, only those that have changed in it or after
-- it: a row whose transaction is as old as the database's oldest counts as changed, so what is left out has not.
with changed as materialized (
    select queue_id as id from queues_queuetally where %(since)s::text is not null
    union select queue_id from queues_queuecount where age(xmin) <= age(%(since)s::text::xid8::xid)
    union select id from queues_queue where age(xmin) <= age(%(since)s::text::xid8::xid)
    union select queue from queues_samplemark where age(xmin) <= age(%(since)s::text::xid8::xid)
), asked as materialized (
    select id, name, kind, paused from queues_queue
    where (%(queues)s::int[] is null or id = any(%(queues)s::int[]))
        and (%(since)s::text is null or id in (select id from changed))
)
select q.id, q.name, q.kind, q.paused, coalesce(i.nodes, 0),
    c.ready + coalesce(t.ready, 0), c.leased + coalesce(t.leased, 0), c.delayed + coalesce(t.delayed, 0),
    c.dead + coalesce(t.dead, 0), c.published + coalesce(t.published, 0), c.settled + coalesce(t.settled, 0),
    c.completed + coalesce(t.completed, 0), coalesce(m.published, 0), coalesce(m.settled, 0), coalesce(m.dead, 0),
    extract(epoch from last.at)::float8
from asked q
join queues_queuecount c on c.queue_id = q.id
left join (
    select queue_id, sum(ready) as ready, sum(leased) as leased, sum(delayed) as delayed, sum(dead) as dead,
        sum(published) as published, sum(settled) as settled, sum(completed) as completed
    from queues_queuetally where %(queues)s::int[] is null or queue_id = any(%(queues)s::int[]) group by queue_id
) as t on t.queue_id = q.id
left join (
    select queue_id, count(*) as nodes from queues_interest where queue_id in (select id from asked) group by queue_id
) as i on i.queue_id = q.id
left join queues_samplemark m on m.queue = q.id
left join queues_samplemark last on last.queue = 0
order by q.name
