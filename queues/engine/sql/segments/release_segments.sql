-- Segments of a node of which nothing is settled are ready again, where they were: these `ids` (null: all) without
-- those in `skip`, but for segments that others hold locked. Those of a single message are left, to be given rows. One
-- row a queue: id, lowest id.
with picked as materialized (
    select slot, first from queues_segment s
    where node_id = %(node)s and (slot = 0 or count > 1)
        and coalesce(first = any(%(ids)s::bigint[]), true) and first <> all(%(skip)s::bigint[])
        and not exists (select from queues_segmentsettlement t where t.slot = s.slot and t.first = s.first)
    order by first for update skip locked
), released as (
    update queues_segment set node_id = null
    where slot = 0 and first = any(array(select first from picked where slot = 0))
    returning first, queue_id, count
), gone as (
    delete from queues_segment where slot > 0 and first = any(array(select first from picked where slot > 0))
    returning first, queue_id, producer_id, count, published_at, max_attempts, content,
        queues_bodies(slot, bodies, bodies_id) as bodies, sizes
), moved as (
    insert into queues_segment (first, queue_id, producer_id, count, published_at, max_attempts, content, bodies, sizes)
    select first, queue_id, producer_id, count, published_at, max_attempts, content, bodies, sizes from gone
    returning first, queue_id, count
), free as (
    select * from released union all select * from moved
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select queue_id, sum(count), -sum(count) from free group by queue_id
)
select queue_id, min(first) from free group by queue_id
