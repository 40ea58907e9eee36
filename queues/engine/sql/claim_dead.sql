-- Lease the oldest dead letters of a queue to this node, for a consumer that reads them. In order of id.
with picked as materialized (
    select ctid from queues_message
    where (select queues_may_lease(%(node)s)) and state = 3 and (queue_id, id) > (%(queue)s, 0) and (queue_id, id) < (%(queue)s + 1, 0)
    order by queue_id, id limit %(limit)s
    for update skip locked
), leased as (
    update queues_message set state = 4, node_id = %(node)s
    where ctid = any(array(select ctid from picked))
    returning id, payload, attempts
)
select *, null::jsonb as detail from leased order by id
