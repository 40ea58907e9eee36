-- The stable ids of the messages that hold these keys in these queues; of several the lowest. One row a key.
select key, min(coalesce(origin_id, id)) from queues_message
where queue_id = any(%(queues)s::int[]) and key = any(%(keys)s::text[]) and key is not null group by key
