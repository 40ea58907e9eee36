-- Store one group of plain messages for each of its target queues.
-- Where this node has a consumer waiting and nothing older is ready, the rows are leased to it at once.
-- Returns the first id and, for each target, whether it was leased; no row when the topology has moved on.
with block as materialized (
    select nextval('queues_message_id') as first
    where pg_current_xact_id() is not null and queues_publish_version(%(node)s) = %(version)s::bigint
), target as materialized (
    select t.queue_id, t.k, t.wanted and not exists (
        select from queues_message m
        where m.state = 0 and (m.queue_id, m.id) > (t.queue_id, t.low) and (m.queue_id, m.id) <= (t.queue_id, 9223372036854775807)
    ) as leased
    from unnest(%(queues)s::int[], %(wanted)s::bool[], %(lows)s::bigint[])
        with ordinality as t (queue_id, wanted, low, k)
), stored as (
    insert into queues_message (id, queue_id, state, node_id, producer_id, max_attempts, content, payload)
    select first + (n - 1) * %(width)s::bigint + k - 1, queue_id,
        case when leased then 1 else 0 end, case when leased then %(node)s::int end,
        %(producer)s::bigint, %(max_attempts)s::smallint, %(content)s::smallint, payload
    from block, target, unnest(%(bodies)b::bytea[]) with ordinality as body (payload, n)
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, published)
    select queue_id,
        case when leased then 0 else %(size)s::int end, case when leased then %(size)s::int else 0 end, %(size)s::int
    from block, target
)
select first, array_agg(leased order by k) as leased from block, target group by first
