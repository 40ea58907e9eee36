-- Lease the oldest ready messages of a queue to this node, looking above `low` only. In order of id.
-- With `limited`, never more are leased over all nodes than the queue's concurrency limit allows: claims of one queue
-- then wait for each other. Positions are compared as rows, so that only the index of ready messages can give the
-- order, whatever the statistics say.
with picked as materialized (
    select ctid from queues_message
    where (select queues_may_lease(%(node)s)) and state = 0
        and (queue_id, id) > (%(queue)s, %(low)s) and (queue_id, id) < (%(queue)s + 1, 0)
        and (expires_at is null or expires_at > now())
    order by queue_id, id
    limit (select case when %(limited)s
        then greatest(0, least(%(limit)s::bigint, queues_concurrency_left(%(queue)s))) else %(limit)s end)
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
