-- The messages of a queue that are the first to go when it holds too many, as drop_oldest.sql has them: ids and queues.
-- Run with sequential scans allowed.
select id, queue_id from queues_message
where queue_id = %(queue)s and state = 0 and id <> all(%(skip)s::bigint[])
order by id >> 56 desc, id limit %(count)s
