-- Bind a queue to an exchange. Returns the queue's id; no row when there is no such queue.
with bound as (
    insert into queues_kombubinding (exchange, type, routing_key, queue_id)
    select %(exchange)s, %(type)s, %(routing_key)s, id from queues_queue where name = %(queue)s and kind <> 'mailbox'
    on conflict (exchange, routing_key, queue_id) do nothing
)
select id from queues_queue where name = %(queue)s and kind <> 'mailbox'
