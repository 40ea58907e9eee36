-- Move dead letters to the tail of the queue named for them; what happened stands in the header "dead-letter".
-- The key stands there too: it was unique in the old queue and might be taken in the new one.
-- One row: lowest new id, how many; no row when nothing moved, as when that queue is gone.
with target as materialized (
    select id from queues_queue where id = %(target)s for key share  -- it cannot be deleted until the commit
), block as materialized (
    select nextval('queues_message_id') as first from target where pg_current_xact_id() is not null
), given as materialized (
    select * from unnest(%(ids)s::bigint[], %(attempts)s::smallint[], %(errors)s::text[])
        with ordinality as g (id, attempts, error, n)
), gone as (
    delete from queues_message m using given, target
    where m.id = given.id and m.id = any(%(ids)s::bigint[]) and m.state = 1 and m.node_id = %(node)s
    returning m.*, given.attempts as tried, coalesce(given.error, m.error) as why, n
), moved as (
    insert into queues_message (id, queue_id, state, producer_id, published_at, origin_id, headers, payload, content)
    select first + n - 1, %(target)s, 0, producer_id, published_at, coalesce(origin_id, gone.id),
        coalesce(headers, '{}') || jsonb_build_object('dead-letter', jsonb_build_object(
            'queue', (select name from queues_queue where id = gone.queue_id), 'attempts', tried, 'error', why, 'key', gone.key,
            'at', now())),
        payload, content
    from gone, block
    returning id
), tallied as (
    insert into queues_queuetally (queue_id, leased, settled)
    select queue_id, -count(*), count(*) from gone group by queue_id
), arrived as (
    insert into queues_queuetally (queue_id, ready, published)
    select %(target)s, count(*), count(*) from moved having count(*) > 0
)
select min(id) as low, count(*) as moved from moved having count(*) > 0
