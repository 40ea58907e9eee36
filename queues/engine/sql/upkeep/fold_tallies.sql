-- Add the tallies in `slots`, of slot 0 those above `low`, to the queues' counts and remove them; `ids`: those of these
-- queues alone (null: of all), and of none in `skip`. Returns the highest id folded, or null.
with gone as (
    delete from queues_queuetally where slot = any(%(slots)s::smallint[]) and (slot > 0 or id > %(low)s)
        and coalesce(queue_id = any(%(ids)s::bigint[]), true) and queue_id <> all(%(skip)s::bigint[])
    returning *
), summed as (
    select queue_id, sum(ready) as ready, sum(leased) as leased, sum(delayed) as delayed, sum(dead) as dead,
        sum(published) as published, sum(settled) as settled, sum(completed) as completed
    from gone join queues_queue q on q.id = queue_id group by queue_id
), folded as (
    insert into queues_queuecount as c (queue_id, ready, leased, delayed, dead, published, settled, completed)
    select * from summed order by queue_id
    on conflict (queue_id) do update set ready = c.ready + excluded.ready, leased = c.leased + excluded.leased,
        delayed = c.delayed + excluded.delayed, dead = c.dead + excluded.dead,
        published = c.published + excluded.published, settled = c.settled + excluded.settled,
        completed = c.completed + excluded.completed
)
select max(id) from gone
