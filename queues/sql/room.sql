-- The free places of a queue with a maximum length.
select queues_room(%(queue)s)
