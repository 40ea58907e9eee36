-- Store messages in queues that plan.sql has called plain, as long as the topology is what it was. Times are seconds
-- from now. A message whose key is taken in its queue is left out. With `announce` engines are told in the same
-- transaction, which must not wait for the disk then: commits that notify wait for each other.
-- One row: the first id, the places (from 0) of those that were stored, and whether engines are told; no row when the
-- topology has moved on.
with block as materialized (
    select nextval('queues_message_id') as first
    where pg_current_xact_id() is not null and queues_topology_version() = %(version)s::bigint
), placed as (
    select queue_id, first + n - 1 as place, priority, null::int as node_id, null::bigint as producer_id,
        statement_timestamp() as published_at, null::smallint as max_attempts,
        case when delay > 0 then now() + make_interval(secs => delay) end as due_at,
        now() + make_interval(secs => ttl) as expires_at, key, headers::jsonb, payload, null::bigint as origin_id,
        content, null::int as retry_interval
    from block, unnest(
        %(queues)s::int[], %(bodies)b::bytea[], %(keys)s::text[], %(headers)s::text[], %(delays)s::float8[],
        %(ttls)s::float8[], %(priorities)s::smallint[], %(contents)s::smallint[]
    ) with ordinality as message (queue_id, payload, key, headers, delay, ttl, priority, content, n)
),
\ir ../../../engine/sql/parts/stored.sql
, announced as materialized (
    select pg_notify('fivewire', '{"ready":{' || string_agg('"' || queue_id || '":' || position, ',') || '}}')
    from (
        select queue_id, min(position) as position from stored where %(announce)s::bool and state = 0 group by queue_id
    ) as ready
    having count(*) > 0
)
select first, array(select (id - first)::int from stored), (select count(*) from announced) from block
