-- A ready message that cannot be claimed becomes a dead letter of its queue. One row, if it was still ready: its id.
with buried as (
    update queues_message m set state = 3, node_id = null, dead_at = now(), due_at = null, expires_at = null, tag = null,
        error = %(error)s
    where m.id = any(%(ids)s::bigint[]) and m.state = 0
    returning m.queue_id, m.id
), tallied as (
    insert into queues_queuetally (queue_id, ready, dead) select queue_id, -count(*), count(*) from buried group by queue_id
)
select id from buried
