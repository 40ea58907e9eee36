-- Queues with their counts, how many nodes serve them, what the last sample saw of them and when, for rates since then.
-- One row a queue; null asks for all.
select q.id, q.name, q.kind, q.paused, coalesce(i.nodes, 0),
    c.ready + coalesce(t.ready, 0), c.leased + coalesce(t.leased, 0), c.delayed + coalesce(t.delayed, 0),
    c.dead + coalesce(t.dead, 0), c.published + coalesce(t.published, 0), c.settled + coalesce(t.settled, 0),
    c.completed + coalesce(t.completed, 0), coalesce(m.published, 0), coalesce(m.settled, 0), coalesce(m.dead, 0), extract(epoch from last.at)::float8
from queues_queue q
join queues_queuecount c on c.queue_id = q.id
left join (
    select queue_id, sum(ready) as ready, sum(leased) as leased, sum(delayed) as delayed, sum(dead) as dead,
        sum(published) as published, sum(settled) as settled, sum(completed) as completed
    from queues_queuetally where %(queues)s::int[] is null or queue_id = any(%(queues)s::int[]) group by queue_id
) as t on t.queue_id = q.id
left join (select queue_id, count(*) as nodes from queues_interest group by queue_id) as i on i.queue_id = q.id
left join queues_samplemark m on m.queue = q.id
left join queues_samplemark last on last.queue = 0
where %(queues)s::int[] is null or q.id = any(%(queues)s::int[])
order by q.name
