-- Store one group of messages that carry more than a body: key, headers, delay, time to live, attempts of their own and
-- so on. As publish.sql; a message whose key is taken in a queue is left out there. With a priority the id is moved to
-- that priority's range, and the one it would have had is its first id.
-- A message with a delay is due that much later, one with a time (`dues`) then.
-- Returns the first id, whether each target was leased, the first ids of those that were stored, and of those of them
-- that are delayed.
with block as materialized (
    select nextval('queues_message_id') as first
    where pg_current_xact_id() is not null and queues_publish_version(%(node)s) = %(version)s::bigint
), target as materialized (
    select t.queue_id, t.k, t.wanted and
\ir ../parts/nothing_ready.sql
    as leased
    from unnest(%(queues)s::int[], %(wanted)s::bool[], %(lows)s::bigint[])
        with ordinality as t (queue_id, wanted, low, k)
), given as (
    select body.*, first + (n - 1) * %(width)s::bigint + k - 1 as place, queue_id, leased,
        case when delay > 0 then now() + make_interval(secs => delay) when due > now() then due end as due_at
    from block, target, unnest(
        %(bodies)b::bytea[], %(keys)s::text[], %(headers)s::text[], %(delays)s::float8[], %(ttls)s::float8[],
        %(attempts)s::smallint[], %(priorities)s::smallint[], %(intervals)s::int[], %(contents)s::smallint[],
        %(dues)s::timestamptz[]
    ) with ordinality as body (payload, key, headers, delay, ttl, max_attempts, priority, retry_interval, content,
        due, n)
), placed as (
    select queue_id, place, priority, case when due_at is null and leased then %(node)s::int end as node_id,
        %(producer)s::bigint as producer_id, statement_timestamp() as published_at, max_attempts, due_at,
        case when ttl > 0 then coalesce(due_at, now()) + make_interval(secs => ttl) end as expires_at, key,
        headers::jsonb, payload, null::bigint as origin_id, content, retry_interval
    from given
),
\ir ../parts/stored.sql
select first, array_agg(leased order by k) as leased, (select array_agg(id) from stored) as stored,
    (select array_agg(id) from stored where state = 2) as delayed
from block, target group by first
