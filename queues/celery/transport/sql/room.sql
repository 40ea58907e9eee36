-- How many more messages a queue with a maximum length may take.
select queues_room(%(queue)s)
