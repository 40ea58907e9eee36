-- Messages that promote_due would make ready: ids and queues.
select id, queue_id from queues_message
where state = 2 and due_at > %(since)s::timestamptz and due_at <= now() and id <> all(%(skip)s::bigint[])
order by due_at limit %(limit)s
