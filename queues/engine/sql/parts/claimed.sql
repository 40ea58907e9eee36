-- The end of a claim: the messages that `leased` updates, tallied, behind the row that tells of the claim; `allowed` is how
-- many might be picked.
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
    case when (select count(*) from picked) < (select count from allowed) then 0 else 1 end as attempts, null as detail
union all
(select * from leased order by id)
