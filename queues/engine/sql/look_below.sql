-- Whether a queue has anything ready among the ids that claims have passed already, and what transactions are under way.
select pg_current_snapshot()::text, exists (
    select from queues_message m
    where m.state = 0 and (m.queue_id, m.id) > (%(queue)s, %(low)s) and (m.queue_id, m.id) <= (%(queue)s, %(high)s))
