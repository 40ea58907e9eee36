-- Messages that expire would remove: ids and queues.
select id, queue_id from queues_message
where expires_at is not null and expires_at > %(since)s::timestamptz and expires_at <= now() and state in (0, 2)
    and id <> all(%(skip)s::bigint[])
order by expires_at limit %(limit)s
