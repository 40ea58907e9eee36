-- The messages that routes have ever carried, and those of the last minute. One row a route; null asks for all.
select r.id, r.source, r.target, coalesce(c.carried, 0) + coalesce(t.carried, 0), coalesce(t.lately, 0)
from queues_route r left join queues_routecount c on c.route_id = r.id left join (
    select route_id, sum(carried)::bigint as carried,
        (sum(carried) filter (where at > now() - interval '1 minute'))::bigint as lately
    from queues_routetally where %(ids)s::bigint[] is null or route_id = any(%(ids)s::bigint[]) group by route_id
) as t on t.route_id = r.id
where %(ids)s::bigint[] is null or r.id = any(%(ids)s::bigint[])
order by r.source, r.target
