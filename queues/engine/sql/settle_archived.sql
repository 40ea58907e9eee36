-- Remove acknowledged messages and archive them. `delivered` are Unix times, in the order of the ids, of which none
-- may be there twice.
-- Returns how many there were.
with gone as (
    delete from queues_message where id = any(%(ids)s::bigint[])
    returning id, origin_id, queue_id, state, attempts, producer_id, published_at, key, headers, payload, content,
        max_attempts, retry_interval, due_at
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at, delivered_at,
        finished_at, max_attempts, retry_interval, due_at, size, key, headers, payload, content, xid)
    select coalesce(origin_id, gone.id), queue_id, 0, attempts, producer_id, %(consumer)s::bigint, published_at,
        to_timestamp(given.at), now(), max_attempts, retry_interval, due_at, length(payload), key,
        case when %(full)s then headers end, case when %(full)s then payload end, content, (select pg_current_xact_id()::text::bigint)
    from gone left join unnest(%(ids)s::bigint[], %(delivered)s::float8[]) as given (id, at) using (id)
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, dead, settled, completed)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 1),
        -count(*) filter (where state = 2), -count(*) filter (where state in (3, 4)), count(*), count(*)
    from gone group by queue_id
)
select count(*) from gone
