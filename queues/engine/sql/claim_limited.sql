-- As claim.sql, for a queue with a concurrency limit: never more leased, over all nodes, than it allows.
-- The lock on the queue's count makes claims of one queue wait for each other; counts are read after it is held.
with allowed as materialized (
    select greatest(0, least(%(limit)s, queues_concurrency_left(%(queue)s))) as most
), picked as materialized (
    select ctid from queues_message
    where (select queues_may_lease(%(node)s)) and state = 0 and (queue_id, id) > (%(queue)s, %(low)s) and (queue_id, id) < (%(queue)s + 1, 0)
        and (expires_at is null or expires_at > now())
    order by queue_id, id limit (select most from allowed)
    for update skip locked
), leased as (
    update queues_message set state = 1, node_id = %(node)s
    where ctid = any(array(select ctid from picked))
    returning id, payload, attempts,
        case when num_nonnulls(headers, key, max_attempts, expires_at, tag, origin_id) > 0 then jsonb_build_object(
            'headers', headers, 'key', key, 'max_attempts', max_attempts, 'tag', tag, 'origin', origin_id,
            'expires_at', extract(epoch from expires_at)) end as detail
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select %(queue)s, -count(*), count(*) from leased having count(*) > 0
)
select * from leased order by id
