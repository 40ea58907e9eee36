-- Their counters, with the tallies that are not added yet.
select q.name, c.ready + coalesce(t.ready, 0), c.leased + coalesce(t.leased, 0),
    c.delayed + coalesce(t.delayed, 0), c.dead + coalesce(t.dead, 0),
    c.published + coalesce(t.published, 0), c.settled + coalesce(t.settled, 0)
from queues_queue q join queues_queuecount c on c.queue_id = q.id, lateral (
    select sum(ready) as ready, sum(leased) as leased, sum(delayed) as delayed, sum(dead) as dead,
        sum(published) as published, sum(settled) as settled
    from queues_queuetally where queue_id = q.id) as t
where q.name = any(%s)
