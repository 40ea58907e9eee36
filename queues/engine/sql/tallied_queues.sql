-- The queues with tallies above `low`, each as its id twice.
select distinct queue_id, queue_id from queues_queuetally where id > %(low)s and queue_id <> all(%(skip)s::bigint[])
