-- A subscription by its id: queue, topic, QoS.
select queue_id, topic, qos from queues_subscription where id = %(id)s
