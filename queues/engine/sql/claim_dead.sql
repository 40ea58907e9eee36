-- Lease the oldest dead letters of a queue to this node, for a consumer that reads them. In order of id.
with picked as materialized (
    select ctid from queues_message
    where queue_id = %(queue)s and state = 3
    order by id limit %(limit)s
    for update skip locked
), leased as (
    update queues_message set state = 4, node_id = %(node)s
    where ctid = any(array(select ctid from picked))
    returning id, payload, attempts
)
select *, null::jsonb as detail from leased order by id
