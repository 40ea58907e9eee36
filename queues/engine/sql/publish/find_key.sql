-- The first id of the message that holds a key in a queue.
select coalesce(origin_id, id) from queues_message where queue_id = %(queue)s and key = %(key)s and key is not null
