-- Remove acknowledged letters, and archive those of queues that keep something of theirs. The arrays are in the order of the
-- ids, of which none may be there twice; `delivered` are Unix times. Returns how many there were.
with given as materialized (
    select * from unnest(
        %(ids)s::bigint[], %(delivered)s::float8[], %(consumers)s::bigint[], %(kept)s::bool[], %(whole)s::bool[]
    ) as g (id, delivered, consumer_id, kept, whole)
), gone as (
    delete from queues_message where id = any(%(ids)s::bigint[])
    returning id, origin_id, queue_id, state, attempts, producer_id, published_at, key, headers, payload, content
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at, delivered_at,
        finished_at, size, key, headers, payload, content, xid)
    select coalesce(origin_id, gone.id), queue_id, 0, attempts, producer_id, consumer_id, published_at,
        to_timestamp(delivered), now(), length(payload), key, case when whole then headers end,
        case when whole then payload end, content, (select pg_current_xact_id()::text::bigint)
    from gone join given using (id) where kept
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, settled, completed)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 1), count(*), count(*)
    from gone group by queue_id
)
select count(*) from gone
