-- Messages of a queue by the delivery tags they keep: one row a message that has one: tag, id, whether it is ready or
-- delayed, node.
select tag, id, state in (0, 2), node_id from queues_message
where queue_id = %(queue)s and tag = any(%(tags)s::bigint[]) and tag is not null
