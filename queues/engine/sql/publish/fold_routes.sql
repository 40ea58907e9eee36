-- Add the tallies of routes that are older than the minute over which rates are read to the totals, and remove them, at
-- most `limit`; those that another node folds are left to it. One row: how many.
with old as materialized (
    select id from queues_routetally where at < now() - interval '1 minute' limit %(limit)s for update skip locked
), gone as (
    delete from queues_routetally where id in (select id from old) returning route_id, carried
), known as materialized (
    select id from queues_route where id in (select route_id from gone) order by id for key share
), folded as (
    insert into queues_routecount as c (route_id, carried)
    select route_id, sum(carried) from gone join known on known.id = route_id group by route_id order by route_id
    on conflict (route_id) do update set carried = c.carried + excluded.carried
)
select count(*)::int from gone
