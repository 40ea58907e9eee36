-- A new subscription of a topic, with a queue of its own. Returns the subscription's id and the queue's.
with numbered as materialized (
    select nextval('queues_subscription_id_seq') as id
), queue as (
    insert into queues_queue (name, uuid, kind, max_attempts, retry_backoff, ack_timeout)
    select '_subscription/' || id || '/' || left(%(label)s, 200), gen_random_uuid(), 'subscription', %(max_attempts)s,
        make_interval(secs => %(retry_backoff)s), null
    from numbered
    returning id
)
insert into queues_subscription (id, topic, qos, queue_id, owner_id)
select numbered.id, %(topic)s, %(qos)s, queue.id, %(owner)s from numbered, queue
returning id, queue_id
