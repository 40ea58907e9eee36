-- Delete those of these temporary queues that are unused for too long even now: since the look one of them may have
-- been declared again. A declaration meanwhile waits for its row. Returns how many.
select queues_drop_temporary(%(lock_class)s, array(
    select queue_id from queues_temporaryqueue
    where (select count(pg_advisory_xact_lock(hashtext('queues_topology')))) = 1
        and queue_id = any(%(queues)s::int[]) and unused_since + expires < now()
    order by queue_id for update))
