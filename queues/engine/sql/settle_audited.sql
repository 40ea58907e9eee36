-- As settle_jobs.sql, for acknowledged messages of an audited queue, each with its own consumer; `jobs` says which were
-- jobs, `kept` and `whole` the retention. The arrays are in the order of the ids, of which none may be there twice.
-- One row a message that was there: its id, and its first one.
with given as materialized (
    select * from unnest(
        %(ids)s::bigint[], %(delivered)s::float8[], %(consumers)s::bigint[], %(jobs)s::bool[], %(results)b::bytea[],
        %(kept)s::bool[], %(whole)s::bool[]
    ) as g (id, delivered, consumer_id, job, result, kept, whole)
), gone as (
    delete from queues_message where id = any(%(ids)s::bigint[])
    returning id, origin_id, queue_id, state, attempts, producer_id, published_at, key, headers, payload, content,
        max_attempts, retry_interval, due_at
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at, delivered_at,
        finished_at, max_attempts, retry_interval, due_at, size, key, headers, payload, content, job, result, xid)
    select coalesce(origin_id, gone.id), queue_id, 0, attempts, producer_id, consumer_id, published_at,
        to_timestamp(given.delivered), now(), max_attempts, retry_interval, due_at, length(payload), key,
        case when whole then headers end, case when whole then payload end, content, nullif(job, false), result,
        (select pg_current_xact_id()::text::bigint)
    from gone join given using (id) where kept
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, dead, settled, completed)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 1),
        -count(*) filter (where state = 2), -count(*) filter (where state in (3, 4)), count(*), count(*)
    from gone group by queue_id
)
select id, coalesce(origin_id, id) from gone
