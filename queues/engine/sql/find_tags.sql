-- Messages of a queue by the delivery tags they keep: one row a message that has one: tag, id, state, node.
select tag, id, state, node_id from queues_message
where queue_id = %(queue)s and tag = any(%(tags)s::bigint[]) and tag is not null
