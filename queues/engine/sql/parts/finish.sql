-- Messages leave the store: those in `picked` (ids) are deleted and tallied, and those of `finished` that are `kept` go
-- to the archive. The statement says in `cause` with which outcome, and whether any is to be kept `whole`; it makes
-- `finished` of `gone`, or takes it from remove.sql.
gone as (
    delete from queues_message where id = any((select ids from picked)::bigint[])
    returning id, origin_id, queue_id, state, attempts, producer_id, published_at, max_attempts, retry_interval, due_at,
        key, content, length(payload) as size,
        -- Copied only if it is kept.
        case when (select whole from cause) then headers end as headers,
        case when (select whole from cause) then payload end as payload
), archived as (
    insert into queues_archivedmessage (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at,
        delivered_at, finished_at, max_attempts, retry_interval, due_at, size, key, headers, payload, content, job, result, xid)
    select coalesce(origin_id, id), queue_id, (select outcome from cause), attempts, producer_id, consumer_id,
        published_at, delivered_at, now(), max_attempts, retry_interval, due_at, size, key,
        case when kept > 1 then headers end, case when kept > 1 then payload end, content, job, result,
        (select pg_current_xact_id()::text::bigint)
    from finished where kept > 0
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, dead, settled, completed)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 1),
        -count(*) filter (where state = 2), -count(*) filter (where state in (3, 4)), count(*),
        case when (select outcome from cause) = 0 then count(*) else 0 end
    from gone group by queue_id
)
