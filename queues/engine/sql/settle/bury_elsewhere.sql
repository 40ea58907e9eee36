-- Move dead letters to the tail of the queue named for them, and count them; the header "dead-letter" tells the cause.
-- The key stands there too: it was unique in the old queue and might be taken in the new one. Of a target that is full
-- and rejects only as many are moved as it has room for. They expire as its other messages do. An audited target's
-- chain is told by the journal. One row: lowest new id, how many, the target's name; with `audited` also the ids that
-- they had, and their first ones in the same order; whether the target drops its oldest when it holds too many. No row
-- when nothing moved, as when that queue is gone.
with target as materialized (
    select id, name, audited, message_ttl, max_length is not null and overflow = 'drop-oldest' as drops,
        case when max_length is not null and overflow = 'reject' then queues_room_locked(id) end as room
    from queues_queue where id = %(target)s for key share  -- it cannot be deleted until the commit
), block as materialized (
    select nextval('queues_message_id') as first from target where pg_current_xact_id() is not null
), given as materialized (
    select * from unnest(%(ids)s::bigint[], %(attempts)s::smallint[], %(errors)s::text[])
        with ordinality as g (id, attempts, error, n)
    where n <= coalesce((select room from target), n)
), gone as (
    delete from queues_message m using given, target
    where m.id = given.id and m.id = any(%(ids)s::bigint[]) and m.state = 1 and m.node_id = %(node)s
    returning m.*, given.attempts as tried, coalesce(given.error, m.error) as why, n,
        coalesce(origin_id, m.id) as first_id
), placed as (
    select %(target)s as queue_id, first + n - 1 as place, 0 as priority, null::int as node_id, producer_id,
        published_at, null::smallint as max_attempts, null::timestamptz as due_at, now() + message_ttl as expires_at,
        null::text as key, coalesce(headers, '{}') || jsonb_build_object('dead-letter', jsonb_build_object(
            'queue', (select name from queues_queue where id = gone.queue_id), 'attempts', tried, 'error', why,
            'key', gone.key, 'at', now())) as headers,
        payload, first_id as origin_id, content, null::int as retry_interval
    from gone, block, target
),
\ir ../parts/stored.sql
, left_there as (
    insert into queues_queuetally (queue_id, leased, settled)
    select queue_id, -count(*), count(*) from gone group by queue_id
), carried as (
    insert into queues_deadlettertally (queue_id, target_id, carried)
    select queue_id, %(target)s, count(*) from gone group by queue_id
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select 'queue:' || target.name, 'dead-letter', first_id::text,
        coalesce((select name from queues_queue where id = gone.queue_id), ''), target.name
    from gone, target where target.audited order by n
)
select min(position) as low, count(*) as moved, (select name::text from target),
    (select array_agg(id order by n) filter (where %(audited)s) from gone),
    (select array_agg(first_id order by n) filter (where %(audited)s) from gone),
    (select drops from target)
from stored having count(*) > 0
