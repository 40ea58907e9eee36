-- Whether nothing is ready in the queue `t.queue_id` above the id `t.low`.
not exists (
    select from queues_message m
    where m.state = 0 and (m.queue_id, m.id) > (t.queue_id, t.low)
        and (m.queue_id, m.id) <= (t.queue_id, 9223372036854775807)
) and not exists (
    select from queues_segment s where s.slot = 0 and s.node_id is null
        and (s.queue_id, s.first) > (t.queue_id, t.low)
        and (s.queue_id, s.first) <= (t.queue_id, 9223372036854775807)
)
