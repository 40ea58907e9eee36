-- The queues with tallies in `slots`, in slot 0 above `low`, each as its id twice.
select distinct queue_id, queue_id from queues_queuetally where slot = any(%(slots)s::smallint[])
    and (slot > 0 or id > %(low)s) and queue_id <> all(%(skip)s::bigint[])
