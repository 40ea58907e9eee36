-- Take a block of delivery tags of a subscription, marking it as used. Returns the first.
update queues_subscription set next_tag = next_tag + %(count)s, used_at = now() where queue_id = %(queue)s
returning next_tag - %(count)s
