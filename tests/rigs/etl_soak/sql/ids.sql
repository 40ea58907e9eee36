-- The messages of one day and queue.
select a.id from queues_archive a join queues_queue q on q.id = a.queue_id
where q.name = %(queue)s and to_char(a.finished_at at time zone 'utc', 'YYYY-MM-DD') = %(day)s
