-- The queues that each address reaches, through subscriptions and routes, at one version of the topology.
-- One row an address and queue: version, position of the address, queue, subscription (or null) and its QoS; and one an
-- address and route on its ways: version, position, nulls, route.
with recursive asked as (
    -- A name with a NUL byte is legal on the wire and cannot be text: it reaches subscriptions, but no route.
    -- convert_from has the collation C, for which there is no index of queues' names.
    select kind, name, n,
        case when position('\x00'::bytea in name) = 0 then convert_from(name, 'UTF8') collate "default" end as text
    from unnest(%(kinds)s::text[], %(names)b::bytea[]) with ordinality as a (kind, name, n)
), reached as (
    select n, kind, name, text, null::bigint as route_id from asked
    union
    select n, split_part(target, ':', 1), convert_to(substr(target, strpos(target, ':') + 1), 'UTF8'),
        substr(target, strpos(target, ':') + 1), queues_route.id
    from reached join queues_route on source = kind || ':' || reached.text
), found as (
    -- One look at an index for each address, however many there are: `offset` keeps the planner from reading the
    -- tables.
    select n, q.id as queue_id, null::bigint as subscription_id, null::smallint as qos
    from reached cross join lateral (
        select id from queues_queue
        where name = case reached.kind when 'queue' then text when 'peer' then '_peer/' || text end
        offset 0
    ) q
    union
    select n, s.queue_id, s.id, s.qos
    from reached cross join lateral (
        select queue_id, id, qos from queues_subscription where kind = 'topic' and topic = reached.name offset 0
    ) s
)
select version, n::int, queue_id, subscription_id, qos, route_id
from (select coalesce((select version from queues_topology), 0)) as topology (version) left join (
    select n, queue_id, subscription_id, qos, null::bigint as route_id from found
    union all
    select distinct n, null::integer, null::bigint, null::smallint, route_id from reached where route_id is not null
) as known on true
order by n, queue_id, route_id
