-- Copy these messages of a queue, or with `archived` those finished ones whose payload was kept, to the tail of a
-- queue: as new messages without attempts, each with its headers, priority, content and limits, and its key if that is
-- free there. `low` and `high` are the times between which archived ones were finished. At most 4096. In the chain of
-- an audited target each is recorded as `copy`, `by` whom; with `named` in that of operators, too. One row: how many,
-- lowest id.
with block as materialized (
    select nextval('queues_message_id') as first
), given as materialized (
    select *, row_number() over (order by id) - 1 as n, row_number() over (partition by key order by id) as nth
    from (
        select id, -(id >> 56) as priority, coalesce(origin_id, id) as first_id, key, headers, payload, content,
            max_attempts, retry_interval, producer_id
        from queues_openmessage where not %(archived)s and queue_id = %(source)s and id = any(%(ids)s::bigint[])
            and segment = any((select queues_segments_of(%(ids)s::bigint[]))::bigint[])
        union all
        select distinct on (id) id, 0, id, key, headers, payload, content, max_attempts, retry_interval, producer_id
        from queues_archive
        where %(archived)s and queue_id = %(source)s and id = any(%(ids)s::bigint[]) and payload is not null
            and finished_at >= %(low)s and finished_at <= %(high)s
    ) as found
), placed as (
    select q.id as queue_id, first + n as place, priority, null::int as node_id, producer_id,
        statement_timestamp() as published_at, given.max_attempts, null::timestamptz as due_at,
        now() + q.message_ttl as expires_at,
        case when nth = 1 and (
            select true from queues_message k where k.queue_id = %(target)s and k.key = given.key limit 1) is null
            then key end as key,
        headers, payload, null::bigint as origin_id, content, retry_interval
    from given, block, queues_queue q where q.id = %(target)s
),
\ir ../engine/sql/parts/stored.sql
, journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select chain, 'copy', record_id, %(by)s, name
    from (select position as id, 'queue:' || name as chain, stored.id::text as record_id, name
        from stored, queues_queue q where q.id = %(target)s and audited
        union all select given.id, 'operators', 'message:' || first_id, name
            from given, queues_queue q where q.id = %(target)s and %(named)s) as told
    order by id, chain
)
select count(*), min(position) from stored
