-- Store groups of plain messages, each message for each target queue of its group, in one statement however many there
-- are. Where this node has a consumer waiting and nothing older is ready, the rows are leased to it at once. A target
-- has the number of its group, its rank in it, its slot, and what its rows have in common; with a slot (not 0) its
-- leased messages are segments of their own, in a table that is only inserted into until it is truncated. A body has
-- its group's number, and how far the id of its row for the target of rank 0 lies behind the first id. Returns the
-- first id and, for each target, whether it was leased; no row when the topology has moved on.
with block as materialized (
    select nextval('queues_message_id') as first
    where pg_current_xact_id() is not null and queues_publish_version(%(node)s) = %(version)s::bigint
), target as materialized (
    select t.*, t.wanted and
\ir ../parts/nothing_ready.sql
    as leased
    from unnest(%(queues)s::int[], %(wanted)s::bool[], %(lows)s::bigint[], %(groups)s::int[], %(ranks)s::int[],
        %(sizes)s::int[], %(producers)s::bigint[], %(attempts)s::smallint[], %(contents)s::smallint[],
        %(slots)s::smallint[])
        with ordinality as t (queue_id, wanted, low, n, rank, size, producer, max_attempts, content, slot, k)
), stored as (
    insert into queues_message (id, queue_id, state, node_id, producer_id, max_attempts, content, payload)
    select first + place + rank, queue_id, case when leased then 1 else 0 end, case when leased then %(node)s::int end,
        producer, max_attempts, content, payload
    from block, unnest(%(bodies)b::bytea[], %(places)s::int[], %(of_groups)s::int[]) as body (payload, place, n)
        join target using (n)
    where not leased or slot = 0
), alone as (
    insert into queues_segment (slot, first, queue_id, node_id, producer_id, count, max_attempts, content, bodies)
    select slot, first + place + rank, queue_id, %(node)s::int, producer, 1, max_attempts, content, array[payload]
    from block, unnest(%(bodies)b::bytea[], %(places)s::int[], %(of_groups)s::int[]) as body (payload, place, n)
        join target using (n)
    where leased and slot <> 0
), tallied as (
    insert into queues_queuetally (slot, queue_id, ready, leased, published)
    select slot, queue_id, case when leased then 0 else size end, case when leased then size else 0 end, size
    from block, target
)
select first, array_agg(leased order by k) as leased from block, target group by first
