-- Note that these queues' subscriptions are in use.
update queues_subscription set used_at = now(), ends_at = null where queue_id = any(%(queues)s::int[])
