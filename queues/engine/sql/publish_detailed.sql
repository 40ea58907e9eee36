-- Store one group of messages that carry more than a body: key, headers, delay, time to live, attempts of their own.
-- As publish.sql; a message whose key is taken in a queue is left out there.
-- Returns the first id, whether each target was leased, and the ids that were stored.
with block as materialized (
    select nextval('queues_message_id') as first
    where queues_publish_version(%(node)s) = %(version)s::bigint
), target as materialized (
    select t.queue_id, t.k, t.wanted and not exists (
        select from queues_message m
        where m.state = 0 and (m.queue_id, m.id) > (t.queue_id, t.low) and (m.queue_id, m.id) < (t.queue_id + 1, 0)
    ) as leased
    from unnest(%(queues)s::int[], %(wanted)s::bool[], %(lows)s::bigint[])
        with ordinality as t (queue_id, wanted, low, k)
), given as (
    select body.*, first + (n - 1) * %(width)s::bigint + k - 1 as id, queue_id, leased and body.delay <= 0 as leased
    from block, target, unnest(
        %(bodies)b::bytea[], %(keys)s::text[], %(headers)s::text[], %(delays)s::float8[], %(ttls)s::float8[],
        %(attempts)s::smallint[]
    ) with ordinality as body (payload, key, headers, delay, ttl, max_attempts, n)
), stored as (
    insert into queues_message (id, queue_id, state, node_id, producer_id, max_attempts, due_at, expires_at,
        key, headers, payload)
    select id, queue_id, case when leased then 1 when delay > 0 then 2 else 0 end,
        case when leased then %(node)s::int end, %(producer)s::bigint, max_attempts,
        case when delay > 0 then now() + make_interval(secs => delay) end,
        case when ttl > 0 then now() + make_interval(secs => greatest(delay, 0) + ttl) end,
        key, headers::jsonb, payload
    from given
    on conflict (queue_id, key) where key is not null do nothing
    returning id, queue_id, state
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, published)
    select queue_id, count(*) filter (where state = 0), count(*) filter (where state = 1),
        count(*) filter (where state = 2), count(*)
    from stored group by queue_id
)
select first, array_agg(leased order by k) as leased, (select array_agg(id) from stored) as stored
from block, target group by first
