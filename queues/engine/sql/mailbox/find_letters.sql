-- The messages with these keys in a mailbox; without a queue, in any mailbox. One row a message: id, key.
with wanted as materialized (
    select queue_id, key
    from (select queue_id from queues_mailbox where %(queue)s::int is null or queue_id = %(queue)s::int) as m,
        unnest(%(keys)s::text[]) as key
), found as materialized (
    select key, (select id from queues_message m
        where m.queue_id = wanted.queue_id and m.key = wanted.key and m.key is not null and state in (0, 1)) as id
    from wanted
)
select id, key from found where id is not null
