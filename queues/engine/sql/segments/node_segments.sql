-- A node's segments: first ids and queues.
select first, queue_id from queues_opensegment where node_id = %(node)s and first <> all(%(skip)s::bigint[])
