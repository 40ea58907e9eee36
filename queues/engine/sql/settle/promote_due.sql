-- Make delayed messages whose time has come ready, at the tail of their priority. Those that were due at `since` are
-- not looked for. `ids`: these alone (null: all), and none of `skip`. One row a queue: id, lowest new id, whether it
-- drops its oldest when it holds too many.
with block as materialized (
    select nextval('queues_message_id') as first where pg_current_xact_id() is not null
), due as materialized (
    select id, row_number() over (order by due_at, id) as n
    from (
        select id, due_at from queues_message where state = 2 and due_at > %(since)s::timestamptz and due_at <= now()
            and coalesce(id = any(%(ids)s::bigint[]), true) and id <> all(%(skip)s::bigint[])
        order by due_at limit %(limit)s for update skip locked) as locked
), promoted as (
    update queues_message m set id = first + n - 1 + ((m.id >> 56) << 56), state = 0,
        origin_id = coalesce(origin_id, m.id)
    from due, block where m.id = due.id and m.id = any(array(select id from due))
    returning m.id, m.queue_id
), counted as (
    select queue_id, min(id) as low, count(*) as ready from promoted group by queue_id
), tallied as (
    insert into queues_queuetally (queue_id, ready, delayed) select queue_id, ready, -ready from counted
)
select queue_id, low,
    (select max_length is not null and overflow = 'drop-oldest' from queues_queue where id = queue_id) as drops
from counted
