-- This node's active consumers: queue and number of each.
select queue_id, id from queues_consumer where node_id = %(node)s and active
