-- Every queue with its counts, how many nodes serve it, and what the last sample saw of it, for rates since then.
select q.id, q.name, q.kind, q.paused, coalesce(i.nodes, 0),
    c.ready + coalesce(t.ready, 0), c.leased + coalesce(t.leased, 0), c.delayed + coalesce(t.delayed, 0),
    c.dead + coalesce(t.dead, 0), c.published + coalesce(t.published, 0), c.settled + coalesce(t.settled, 0),
    c.completed + coalesce(t.completed, 0), coalesce(m.published, 0), coalesce(m.settled, 0), coalesce(m.dead, 0)
from queues_queue q
join queues_queuecount c on c.queue_id = q.id
left join (
    select queue_id, sum(ready) as ready, sum(leased) as leased, sum(delayed) as delayed, sum(dead) as dead,
        sum(published) as published, sum(settled) as settled, sum(completed) as completed
    from queues_queuetally group by queue_id
) as t on t.queue_id = q.id
left join (select queue_id, count(*) as nodes from queues_interest group by queue_id) as i on i.queue_id = q.id
left join queues_samplemark m on m.queue = q.id
order by q.name
