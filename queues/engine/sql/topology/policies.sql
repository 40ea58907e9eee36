-- The policies of queues; the last column has the nodes that serve them.
select id, name, paused, refuse_when_paused, concurrency_limit, max_attempts,
    extract(epoch from retry_backoff)::float8, extract(epoch from retry_backoff_cap)::float8,
    extract(epoch from ack_timeout)::float8, extract(epoch from message_ttl)::float8,
    max_length, overflow, retention, dead_letter_queue_id, allow_job_overrides, uuid::text, audited,
    single_active_consumer,
    array(select node_id from queues_interest i where i.queue_id = q.id)
from queues_queue q where id = any(%(ids)s)
