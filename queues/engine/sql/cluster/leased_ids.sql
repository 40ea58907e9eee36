-- A node's leases: ids and queues. Run with sequential scans allowed, as reap_leases.
select id, queue_id from queues_message where node_id = %(node)s and state in (1, 4) and id <> all(%(skip)s::bigint[])
