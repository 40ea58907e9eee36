-- As publish_one.sql, for many plain messages: where they are leased at once, they are stored as one row, a segment.
-- Returns the first id and whether they were leased; no row when the topology has moved on.
with block as materialized (
    select nextval('queues_message_id') as first, not exists (
        select from queues_message m
        where m.state = 0 and (m.queue_id, m.id) > (%(queue)s, %(low)s) and (m.queue_id, m.id) <= (%(queue)s, 9223372036854775807)
    ) as leased
    where pg_current_xact_id() is not null and queues_publish_version(%(node)s) = %(version)s::bigint
), segment as (
    insert into queues_segment (first, queue_id, node_id, producer_id, count, max_attempts, content, bodies)
    select first, %(queue)s, %(node)s::int, %(producer)s::bigint, %(size)s, %(max_attempts)s::smallint, %(content)s::smallint,
        %(bodies)b::bytea[]
    from block where leased
), stored as (
    insert into queues_message (id, queue_id, state, producer_id, max_attempts, content, payload)
    select first + n - 1, %(queue)s, 0, %(producer)s::bigint, %(max_attempts)s::smallint, %(content)s::smallint, payload
    from block, unnest(case when leased then '{}' else %(bodies)b::bytea[] end) with ordinality as body (payload, n)
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, published)
    select %(queue)s,
        case when leased then 0 else %(size)s::int end, case when leased then %(size)s::int else 0 end, %(size)s::int
    from block
)
select first, leased from block
