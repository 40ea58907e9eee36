-- Note how many messages each of these routes has carried; those that are gone are left out.
insert into queues_routetally (route_id, carried)
select id, carried from unnest(%(routes)s::bigint[], %(carried)s::bigint[]) as t (id, carried)
    join queues_route using (id)
