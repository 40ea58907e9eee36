-- This node no longer serves these queues; tell the others.
with dropped as (
    delete from queues_interest where node_id = %(node)s and queue_id = any(%(queues)s::int[]) returning queue_id
)
select queues_notify_interest('disinterest', array_agg(queue_id), %(node)s) from dropped
