-- As publish.sql, for many plain messages of one group: for each target queue they are stored as one row, a segment,
-- whose messages have consecutive ids. It is leased at once where this node has a consumer waiting and nothing older is
-- ready, and then stands in the table of the slot, which is only inserted into until it is truncated. Where that are
-- several queues, the bodies are stored once, beside these segments. `sizes` are the lengths of the bodies, or the one
-- length that all have. Returns the first id for each target and whether it was leased; no row when the topology has
-- moved on.
with block as materialized (
    select where pg_current_xact_id() is not null and queues_publish_version(%(node)s) = %(version)s::bigint
), target as materialized (
    select t.queue_id, t.k, nextval('queues_message_id') as first, t.wanted and
\ir ../parts/nothing_ready.sql
    as leased
    from block, unnest(%(queues)s::int[], %(wanted)s::bool[], %(lows)s::bigint[])
        with ordinality as t (queue_id, wanted, low, k)
), shared as materialized (
    select min(first) as id from target where leased having count(*) > 1
), stored_once as (
    insert into queues_segmentbody (slot, id, bodies, sizes)
    select %(slot)s::smallint, id, %(bodies)b::bytea[], %(sizes)s::int[] from shared
), stored as (
    insert into queues_segment (slot, first, queue_id, node_id, producer_id, count, max_attempts, content, bodies,
        bodies_id, sizes)
    select case when leased then %(slot)s::smallint else 0 end, first, queue_id,
        case when leased then %(node)s::int end, %(producer)s::bigint, %(size)s, %(max_attempts)s::smallint,
        %(content)s::smallint, case when leased and id is not null then null else %(bodies)b::bytea[] end,
        case when leased then id end, case when leased and id is not null then null else %(sizes)s::int[] end
    from target left join shared on true
), tallied as (
    insert into queues_queuetally (slot, queue_id, ready, leased, published)
    select %(slot)s::smallint, queue_id, case when leased then 0 else %(size)s::int end,
        case when leased then %(size)s::int else 0 end, %(size)s::int
    from target
)
select array_agg(first order by k), array_agg(leased order by k) from target having count(*) > 0
