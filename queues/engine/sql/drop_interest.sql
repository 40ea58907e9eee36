-- This node no longer serves these queues; tell the others.
with dropped as (
    delete from queues_interest where node_id = %(node)s and queue_id = any(%(queues)s::int[]) returning queue_id
)
select pg_notify('fivewire', json_build_object('disinterest', json_agg(queue_id), 'node', %(node)s)::text) from dropped
