-- The end of a claim: the messages that `leased` updates or, if it picks none, those of the segments that come first,
-- tallied, behind the row that tells of the claim; `allowed` is how many might be taken. A segment has all of its
-- bodies.
    returning id, payload, attempts,
        -- As json the headers are written once; as jsonb they would be copied first.
        case when num_nonnulls(headers, key, max_attempts, expires_at, tag, origin_id, retry_interval) > 0
            then json_build_object(
                'headers', headers, 'key', key, 'max_attempts', max_attempts, 'tag', tag, 'origin', origin_id,
                'expires_in', extract(epoch from expires_at - now()), 'content', content,
                'retry_interval', retry_interval)::text
            when content is not null then content::text end as detail
), waiting as materialized (
    select first, count, pg_column_size(bodies) + %(overhead)s * count as size from queues_segment
    where not exists (select from picked) and (select count from allowed) > 0 and (select queues_may_lease(%(node)s))
        and slot = 0 and node_id is null and (queue_id, first) > (%(queue)s, %(low)s)
        and (queue_id, first) < (%(queue)s, coalesce((
            -- Those before `packed` that are not picked are another transaction's.
            select id from queues_message
            where state = 0 and (queue_id, id) > (%(queue)s, (select first from packed))
                and (queue_id, id) <= (%(queue)s, 9223372036854775807)
                and (expires_at is null or expires_at > now())
            order by queue_id, id limit 1
        ), 9223372036854775807))
    order by queue_id, first limit 100
), fitting as materialized (
    select first from (select first, count, size, sum(count) over (order by first) as reached from waiting) as segment
    where reached <= (select count from allowed) or (reached = count and size <= %(most_packed)s)
), locked as materialized (
    -- `+ 0`: else the index of ready segments could be read, of all queues, as PostgreSQL 15 does.
    select first, count from queues_segment
    where slot = 0 and first = any(array(select first from fitting)) and node_id + 0 is null
    order by first for update skip locked
), free as materialized (
    -- What comes behind a segment that another transaction has locked is left: that one may be unpacked, and its
    -- messages ready still.
    select first, count from locked where first < coalesce(
        (select min(first) from fitting where first <> all(array(select first from locked))), 9223372036854775807)
), taken as (
    update queues_segment set node_id = %(node)s where slot = 0 and first = any(array(select first from free))
    returning first, bodies, case when max_attempts is not null
        then jsonb_build_object('max_attempts', max_attempts, 'content', content)::text else content::text end as detail
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select %(queue)s, -n, n
    from (select (select count(*) from leased) + coalesce((select sum(count) from free), 0) as n) as moved where n > 0
)
select -1 as id, convert_to(pg_current_snapshot()::text, 'UTF8') as payload,
    case
        when exists (select from waiting) then ((select count(*) from waiting) > (select count(*) from free)
            or (select count(*) from waiting) = 100 or exists (
                select from queues_message
                where state = 0 and (queue_id, id) > (%(queue)s, %(low)s)
                    and (queue_id, id) <= (%(queue)s, 9223372036854775807)
            ))::int
        when exists (select from packed) then (exists (select from picked) or (select count from allowed) = 0)::int
        when (select count(*) from picked) < (select count from allowed) then 0 else 1
    end as attempts,
    case when not exists (select from fitting) then (select min(first)::text from waiting) end as detail,
        null::bytea[] as bodies
union all
(select id, payload, attempts, detail, null from leased order by id)
union all
(select first, null, 0, detail, bodies from taken order by first)
