-- Remove waiting messages whose time to live has passed since a time; `ids`: of these alone (null: of all), and none of
-- `skip`. Returns how many, and from when on to look next.
with recursive cause as (
    select 1 as outcome, 'expire' as event, null as by, false as named, false as whole
), picked as (
    select array(
        select id from queues_message
        where expires_at is not null and expires_at > %(since)s::timestamptz and expires_at <= now() and state in (0, 2)
            and coalesce(id = any(%(ids)s::bigint[]), true) and id <> all(%(skip)s::bigint[])
        order by expires_at limit %(limit)s for update skip locked
    ) as ids
),
\ir ../parts/remove.sql
select count(*), (now() - interval '10 s')::text from gone
