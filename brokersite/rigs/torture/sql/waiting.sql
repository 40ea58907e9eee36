-- Messages that are neither finished nor dead.
select count(*) from queues_openmessage m join queues_queue q on q.id = m.queue_id
where q.name = any(%s) and m.state in (0, 1, 2)
