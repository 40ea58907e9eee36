-- New subscriptions of topics, each with a queue of its own and its first `tags` delivery tags taken. One row each, in
-- order: the subscription's id, the queue's, the first tag.
with wanted as materialized (
    select nextval('queues_subscription_id_seq') as id, w.*
    from unnest(%(topics)s::bytea[], %(labels)s::text[], %(qoses)s::smallint[], %(owners)s::bigint[])
        with ordinality as w (topic, label, qos, owner, n)
), named as materialized (
    select *, '_subscription/' || id || '/' || left(label, 200) as name from wanted
), queue as (
    insert into queues_queue (name, uuid, kind, max_attempts, retry_backoff, ack_timeout)
    select name, gen_random_uuid(), 'subscription', %(max_attempts)s, make_interval(secs => %(retry_backoff)s), null
    from named order by n
    returning id, name
), made as (
    insert into queues_subscription (id, topic, qos, queue_id, owner_id, next_tag)
    select named.id, topic, qos, queue.id, owner, 1 + %(tags)s from named join queue using (name)
    returning id, queue_id, next_tag - %(tags)s as first_tag
)
select id, queue_id, first_tag from made join wanted using (id) order by n
