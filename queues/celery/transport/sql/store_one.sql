-- As store.sql, for the commonest case: one message, which is not announced. It takes half as long.
with block as materialized (
    select nextval('queues_message_id') as first,
        case when %(delay)s::float8 > 0 then now() + make_interval(secs => %(delay)s::float8) end as due_at
    where pg_current_xact_id() is not null and queues_topology_version() = %(version)s::bigint
), stored as (
    insert into queues_message (id, queue_id, state, due_at, expires_at, key, headers, payload, origin_id, content)
    select first - (%(priority)s::bigint << 56), %(queue)s::int, case when due_at is null then 0 else 2 end, due_at,
        now() + make_interval(secs => %(ttl)s::float8), %(key)s::text, %(headers)s::jsonb, %(body)b::bytea,
        case when %(priority)s::bigint <> 0 then first end, %(content)s::smallint
    from block
    on conflict (queue_id, key) where key is not null do nothing
    returning id, state
), tallied as (
    insert into queues_queuetally (queue_id, ready, delayed, published)
    select %(queue)s::int, case state when 0 then 1 else 0 end, case state when 2 then 1 else 0 end, 1 from stored
)
select first, array(select 0 from stored), 0 from block
