-- As publish.sql, for the commonest case: one target queue. It starts faster, which shortens the latency of one message
-- in flight. With a slot (not 0) leased messages are segments of their own, in a table that is only inserted into until
-- it is truncated. Returns the first id and whether the rows were leased; no row when the topology has moved on.
with block as materialized (
    select nextval('queues_message_id') as first, %(wanted)s::bool and
\ir ../parts/nothing_ready.sql
    as leased
    from (select %(queue)s::int, %(low)s::bigint) as t (queue_id, low)
    where pg_current_xact_id() is not null and queues_publish_version(%(node)s) = %(version)s::bigint
), stored as (
    insert into queues_message (id, queue_id, state, node_id, producer_id, max_attempts, content, payload)
    select first + n - 1, %(queue)s, case when leased then 1 else 0 end, case when leased then %(node)s::int end,
        %(producer)s::bigint, %(max_attempts)s::smallint, %(content)s::smallint, payload
    from block, unnest(%(bodies)b::bytea[]) with ordinality as body (payload, n)
    where not leased or %(slot)s::smallint = 0
), alone as (
    insert into queues_segment (slot, first, queue_id, node_id, producer_id, count, max_attempts, content, bodies)
    select %(slot)s::smallint, first + n - 1, %(queue)s, %(node)s::int, %(producer)s::bigint, 1,
        %(max_attempts)s::smallint, %(content)s::smallint, array[payload]
    from block, unnest(%(bodies)b::bytea[]) with ordinality as body (payload, n)
    where leased and %(slot)s::smallint <> 0
), tallied as (
    insert into queues_queuetally (slot, queue_id, ready, leased, published)
    select %(slot)s::smallint, %(queue)s,
        case when leased then 0 else %(size)s::int end, case when leased then %(size)s::int else 0 end, %(size)s::int
    from block
)
select first, leased from block
