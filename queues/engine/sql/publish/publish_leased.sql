-- As publish_one.sql, for messages that consumers of this node wait for, each as a segment of its own: the statement
-- that starts fastest. It stores nothing, and returns no row, when others are ready before them, or the topology has
-- moved on: publish_one.sql finds out which.
with block as materialized (
    select nextval('queues_message_id') as first from (select %(queue)s::int, %(low)s::bigint) as t (queue_id, low)
    where pg_current_xact_id() is not null and queues_publish_version(%(node)s) = %(version)s::bigint and
\ir ../parts/nothing_ready.sql
), alone as (
    insert into queues_segment (slot, first, queue_id, node_id, producer_id, count, max_attempts, content, bodies)
    select %(slot)s::smallint, first + n - 1, %(queue)s, %(node)s::int, %(producer)s::bigint, 1,
        %(max_attempts)s::smallint, %(content)s::smallint, array[payload]
    from block, unnest(%(bodies)b::bytea[]) with ordinality as body (payload, n)
), tallied as (
    insert into queues_queuetally (slot, queue_id, ready, leased, published)
    select %(slot)s::smallint, %(queue)s, 0, %(size)s::int, %(size)s::int from block
)
select first, true from block
