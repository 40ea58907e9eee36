-- This node serves these queues from now on; tell the others.
with added as (
    insert into queues_interest (queue_id, node_id) select q, %(node)s from unnest(%(queues)s::int[]) q
    on conflict do nothing returning queue_id
)
select pg_notify('fivewire', json_build_object('interest', json_agg(queue_id), 'node', %(node)s)::text) from added
