-- Segments of a node of which nothing is settled are ready again, where they were: these `ids` (null: all) without those in
-- `skip`, but for segments that others hold locked. One row a queue: id, lowest id.
with picked as materialized (
    select first from queues_segment s
    where node_id = %(node)s and coalesce(first = any(%(ids)s::bigint[]), true) and first <> all(%(skip)s::bigint[])
        and not exists (select from queues_segmentsettlement t where t.first = s.first)
    order by first for update skip locked
), released as (
    update queues_segment set node_id = null where first = any(array(select first from picked))
    returning first, queue_id, count
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select queue_id, sum(count), -sum(count) from released group by queue_id
)
select queue_id, min(first) from released group by queue_id
