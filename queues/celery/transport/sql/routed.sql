-- The queues that an exchange may lead to: type of the binding, its routing key, the queue's name. Of direct bindings
-- those with this routing key, or (null) all.
select b.type, b.routing_key, q.name from queues_kombubinding b join queues_queue q on q.id = b.queue_id
where b.exchange = %(exchange)s
    and (%(routing_key)s::text is null or b.type <> 'direct' or b.routing_key = %(routing_key)s::text)
order by b.id
