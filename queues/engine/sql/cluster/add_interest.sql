-- This node serves these queues from now on; tell the others.
with added as (
    insert into queues_interest (queue_id, node_id) select q, %(node)s from unnest(%(queues)s::int[]) q
    on conflict do nothing returning queue_id
)
select queues_notify_interest('interest', array_agg(queue_id), %(node)s) from added
