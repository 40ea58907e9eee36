-- Tell of this node's workers: those that changed, as a JSON array, and the ids of those that are gone.
with gone as (
    delete from queues_worker where node_id = %(node)s and wid = any(%(gone)s::uuid[])
)
insert into queues_worker (wid, node_id, address, connected_at, requests, subscriptions, jobs, active, updated_at)
select wid, %(node)s, address, to_timestamp(connected_at), requests, subscriptions, jobs, active, now()
from jsonb_to_recordset(%(workers)s::jsonb) as w (wid uuid, address text, connected_at float8, requests bigint,
    subscriptions jsonb, jobs jsonb, active integer)
where exists (select from queues_node where id = %(node)s)
on conflict (wid) do update set node_id = excluded.node_id, requests = excluded.requests,
    subscriptions = excluded.subscriptions, jobs = excluded.jobs, active = excluded.active, updated_at = now()
