-- Of these queues, those that other nodes serve.
select distinct queue_id from queues_interest where queue_id = any(%(queues)s::int[]) and node_id <> %(node)s
