-- Look at the next `rows` messages beyond the id `after` for those that fit, and return the first `most` of them. `way`
-- says where: 'queue' (those of one queue in one state, by the index of that state), 'key' (by the index of keys),
-- 'ids' (these, by their places or first ids) or 'all' (every message, by its place). What has an id above `high`,
-- without the priority in its highest byte, is passed over. Of a body the first 64 KiB are searched. A null parameter
-- fits all. One row: the places of those that fit, how many were looked at, the last place that was, and with `length`
-- the beginnings of the reasons of those that fit: of what stands in a dead-letter queue that in the header.
with looked as materialized (
    select id, (id & 72057594037927935) <= %(high)s
        and (%(states)s::smallint[] is null or state = any(%(states)s::smallint[]))
        and (%(queue)s::int is null or queue_id = %(queue)s::int)
        and (%(since)s::timestamptz is null or published_at >= %(since)s::timestamptz)
        and (%(until)s::timestamptz is null or published_at < %(until)s::timestamptz)
        and (%(key)s::text is null or key = %(key)s::text)
        and (%(header)s::text is null or (jsonb_typeof(headers) = 'object' and headers ? %(header)s::text))
        and (%(value)s::text is null or headers ->> %(header)s::text = %(value)s::text)
        and (%(producers)s::bigint[] is null or producer_id = any(%(producers)s::bigint[]))
        and (%(content)s::smallint is null or content = %(content)s::smallint)
        and (%(text)s::bytea is null or position(%(text)s::bytea in substring(payload from 1 for 65536)) > 0) as fits,
        case when %(length)s::int is null then null
            when state = 0 and jsonb_typeof(headers -> 'dead-letter') = 'object'
            then left(headers -> 'dead-letter' ->> 'error', %(length)s::int)
            else left(error, %(length)s::int) end as reason
    from (
        (select id, state, queue_id, published_at, key, headers, producer_id, content, error, payload
        from queues_message
        where %(way)s = 'queue' and state = %(state)s and (queue_id, id) > (%(queue)s, %(after)s)
            and (queue_id, id) <= (%(queue)s, 9223372036854775807)
        order by queue_id, id limit %(rows)s)
        union all
        (select id, state, queue_id, published_at, null, null, producer_id, content, null, payload
        from queues_segmentmessage
        where %(way)s = 'queue' and state = %(state)s and queue_id = %(queue)s and id > %(after)s
            and segment > greatest(%(after)s, -9223372036854771712) - 4096 and segment <= (
                select queues_last_segment(%(queue)s, %(state)s::smallint, %(after)s, %(rows)s))
        order by id limit %(rows)s)
        union all
        (select id, state, queue_id, published_at, key, headers, producer_id, content, error, payload
        from queues_message
        where %(way)s = 'key' and queue_id = any(%(queues)s::int[]) and key = %(key)s and key is not null
            and id > %(after)s
        order by id limit %(rows)s)
        union all
        (select id, state, queue_id, published_at, key, headers, producer_id, content, error, payload
        from queues_openmessage
        where %(way)s = 'ids' and id > %(after)s and (origin_id = any(%(ids)s::bigint[]) or (
            id = any(%(ids)s::bigint[]) and segment = any((select queues_segments_of(%(ids)s::bigint[]))::bigint[])))
        order by id limit %(rows)s)
        union all
        (select id, state, queue_id, published_at, key, headers, producer_id, content, error, payload
        from queues_openmessage
        where %(way)s = 'all' and id > %(after)s and segment > greatest(%(after)s, -9223372036854771712) - 4096
            and segment <= (select queues_last_segment(null, null, %(after)s, %(rows)s))
        order by id limit %(rows)s)
    ) as near
    order by id limit %(rows)s
), fitting as materialized (
    select id, reason from looked where fits order by id limit %(most)s
)
select (select array_agg(id order by id) from fitting), count(*), max(id),
    case when %(length)s::int is not null then (select array_agg(reason order by id) from fitting) end
from looked
where (select count(*) from fitting) < %(most)s or id <= (select max(id) from fitting)
