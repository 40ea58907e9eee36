-- Queues' messages by state, and the numbers that ever entered and left them. One row a queue; null asks for all.
select c.queue_id, c.ready + coalesce(t.ready, 0), c.leased + coalesce(t.leased, 0),
    c.delayed + coalesce(t.delayed, 0), c.dead + coalesce(t.dead, 0),
    c.published + coalesce(t.published, 0), c.settled + coalesce(t.settled, 0),
    c.completed + coalesce(t.completed, 0)
from queues_queuecount c left join (
    select queue_id, sum(ready) as ready, sum(leased) as leased, sum(delayed) as delayed, sum(dead) as dead,
        sum(published) as published, sum(settled) as settled,
        sum(completed) as completed
    from queues_queuetally where %(queues)s::int[] is null or queue_id = any(%(queues)s::int[]) group by queue_id
) as t using (queue_id)
where %(queues)s::int[] is null or c.queue_id = any(%(queues)s::int[])
