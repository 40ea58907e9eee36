-- Undo a binding.
delete from queues_kombubinding
where exchange = %(exchange)s and routing_key = %(routing_key)s
    and queue_id = (select id from queues_queue where name = %(queue)s)
