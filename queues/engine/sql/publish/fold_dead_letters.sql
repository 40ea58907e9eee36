-- Add the tallies of moved dead letters that are older than the minute over which rates are read to the totals, and
-- remove them, at most `limit`; those that another node folds are left to it. One row: how many.
with old as materialized (
    select id from queues_deadlettertally where at < now() - interval '1 minute' limit %(limit)s for update skip locked
), gone as (
    delete from queues_deadlettertally where id in (select id from old) returning queue_id, target_id, carried
), known as materialized (
    select id from queues_queue where id in (select queue_id from gone union select target_id from gone)
    order by id for key share
), folded as (
    insert into queues_deadlettercount as c (queue_id, target_id, carried)
    select queue_id, target_id, sum(carried) from gone
    where queue_id in (select id from known) and target_id in (select id from known)
    group by queue_id, target_id order by queue_id, target_id
    on conflict (queue_id, target_id) do update set carried = c.carried + excluded.carried
)
select count(*)::int from gone
