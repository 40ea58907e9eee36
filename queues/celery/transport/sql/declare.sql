-- Make a queue unless there is one of this name; a temporary one (`expires` is seconds) keeps nothing of its messages.
-- One that is there already is not unused any more.
with made as (
    insert into queues_queue (name, uuid, max_attempts, retry_backoff, ack_timeout, message_ttl, max_length, overflow,
        retention, single_active_consumer)
    values (%(name)s, gen_random_uuid(), 0, interval '0', null, make_interval(secs => %(ttl)s::float8),
        %(max_length)s::int, %(overflow)s, case when %(expires)s::float8 is null then 'metadata' else 'none' end, %(single_active_consumer)s)
    on conflict (name) do nothing
    returning id
), touched as (
    update queues_temporaryqueue set unused_since = null
    where unused_since is not null and queue_id = (select id from queues_queue where name = %(name)s)
)
insert into queues_temporaryqueue (queue_id, auto_delete, expires)
select id, %(auto_delete)s, make_interval(secs => %(expires)s::float8) from made where %(expires)s::float8 is not null
