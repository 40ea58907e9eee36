-- Every binding of an exchange: its type, its routing key, the queue's name.
select b.type, b.routing_key, q.name from queues_kombubinding b join queues_queue q on q.id = b.queue_id
where b.exchange = %(exchange)s order by b.id
