-- As claim.sql, for a queue that no other node serves and that has no limit: rows need not be locked before they are
-- updated, which makes it cheaper. Should another claim come in between after all, the update sees
-- that a row is no longer ready and leaves it; written so that no index is tempted to look for it. As there, the first
-- row tells of the claim itself.
with picked as materialized (
    select ctid from queues_message
    where (select queues_may_lease(%(node)s)) and state = 0
        and (queue_id, id) > (%(queue)s, %(low)s) and (queue_id, id) <= (%(queue)s, 9223372036854775807)
        and (expires_at is null or expires_at > now())
    order by queue_id, id
    limit %(limit)s
), leased as (
    update queues_message set state = 1, node_id = %(node)s
    where ctid = any(array(select ctid from picked)) and state + 0 = 0 and queue_id + 0 = %(queue)s
    returning id, payload, attempts,
        case when num_nonnulls(headers, key, max_attempts, expires_at, tag, origin_id, retry_interval) > 0 then jsonb_build_object(
            'headers', headers, 'weight', coalesce(octet_length(headers::text), 0), 'key', key, 'max_attempts', max_attempts, 'tag', tag, 'origin', origin_id,
            'expires_in', extract(epoch from expires_at - now()), 'content', content, 'retry_interval', retry_interval)::text
            when content is not null then content::text end as detail
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select %(queue)s, -count(*), count(*) from leased having count(*) > 0
)
select -1 as id, convert_to(pg_current_snapshot()::text, 'UTF8') as payload,
    case when (select count(*) from picked) < %(limit)s then 0 else 1 end as attempts, null as detail
union all
(select * from leased order by id)
