-- The messages that have left them.
select q.name, a.id, a.outcome, a.payload
from queues_archive a join queues_queue q on q.id = a.queue_id where q.name = any(%s)
