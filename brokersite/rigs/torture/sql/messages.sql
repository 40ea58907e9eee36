-- The messages that the queues hold.
select q.name, m.payload, coalesce(m.origin_id, m.id), m.state
from queues_openmessage m join queues_queue q on q.id = m.queue_id where q.name = any(%s)
