-- Make leased messages dead letters of their own queues. One row a queue: its id; with `audited` also the messages' ids,
-- and their first ones in the same order.
with given as materialized (
    select * from unnest(%(ids)s::bigint[], %(attempts)s::smallint[], %(errors)s::text[]) as g (id, attempts, error)
), buried as (
    update queues_message m set state = 3, node_id = null, dead_at = now(), due_at = null, expires_at = null,
        tag = null, attempts = given.attempts, error = coalesce(given.error, m.error)
    from given
    where m.id = given.id and m.id = any(%(ids)s::bigint[]) and m.state = 1 and m.node_id = %(node)s
    returning m.queue_id, m.id, coalesce(m.origin_id, m.id) as first_id
), tallied as (
    insert into queues_queuetally (queue_id, leased, dead)
    select queue_id, -count(*), count(*) from buried group by queue_id
)
select queue_id, array_agg(id) filter (where %(audited)s), array_agg(first_id) filter (where %(audited)s)
from buried group by queue_id
