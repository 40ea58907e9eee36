-- Store the messages of `placed` as rows of their own, in order, and count them. A message whose key is taken in its
-- queue is left out. `place` is the id that a message has without its priority; with one it has another, its position.
-- A message with a `node_id` is leased to that node, one with a `due_at` is delayed.
stored as (
    insert into queues_message (id, queue_id, state, node_id, producer_id, published_at, max_attempts, due_at,
        expires_at, key, headers, payload, origin_id, content, retry_interval)
    select place - (priority::bigint << 56), queue_id,
        case when due_at is not null then 2 when node_id is not null then 1 else 0 end, node_id, producer_id,
        published_at, max_attempts, due_at, expires_at, key, headers, payload,
        coalesce(origin_id, case when priority <> 0 then place end), content, retry_interval
    from placed
    order by place
    on conflict (queue_id, key) where key is not null do nothing
    returning id as position, coalesce(origin_id, id) as id, queue_id, state
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, published)
    select queue_id, count(*) filter (where state = 0), count(*) filter (where state = 1),
        count(*) filter (where state = 2), count(*)
    from stored group by queue_id
)
