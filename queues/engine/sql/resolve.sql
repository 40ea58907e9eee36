-- The queues that each address reaches, through subscriptions and routes, at one version of the topology.
-- One row an address and queue: version, position of the address, queue, subscription (or null) and its QoS.
with recursive asked as (
    -- A name with a NUL byte is legal on the wire and cannot be text: it reaches subscriptions, but no route.
    select kind, name, case when position('\x00'::bytea in name) = 0 then convert_from(name, 'UTF8') end as text, n
    from unnest(%(kinds)s::text[], %(names)b::bytea[]) with ordinality as a (kind, name, n)
), reached as (
    select n, kind, name, text from asked
    union
    select n, split_part(target, ':', 1), convert_to(substr(target, strpos(target, ':') + 1), 'UTF8'),
        substr(target, strpos(target, ':') + 1)
    from reached join queues_route on source = kind || ':' || reached.text
), found as (
    select n, q.id as queue_id, null::bigint as subscription_id, null::smallint as qos
    from reached join queues_queue q on q.name = case reached.kind when 'queue' then reached.text
            when 'peer' then '_peer/' || reached.text end
        and q.name = any(array(select case kind when 'peer' then '_peer/' || text else text end from reached where kind <> 'topic'))
    union
    select n, s.queue_id, s.id, s.qos
    from reached join queues_subscription s on reached.kind = 'topic' and s.topic = reached.name
        and s.topic = any(array(select name from reached where kind = 'topic'))
)
select version, n::int, queue_id, subscription_id, qos
from (select coalesce((select version from queues_topology), 0)) as topology (version) left join found on true
order by n, queue_id
