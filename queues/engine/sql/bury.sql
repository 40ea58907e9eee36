-- Make leased messages dead letters of their own queues, behind those that are there: in the order of their death.
-- A message gets a new id and keeps its first one. One row a queue: its id; with `audited` also the ids that the messages
-- had, and their first ones in the same order.
with block as materialized (
    select nextval('queues_message_id') as first where pg_current_xact_id() is not null
), given as materialized (
    select * from unnest(%(ids)s::bigint[], %(attempts)s::smallint[], %(errors)s::text[])
        with ordinality as g (id, attempts, error, n)
), buried as (
    update queues_message m set
        id = first + n - 1 + ((m.id >> 56) << 56), state = 3, node_id = null, dead_at = now(), due_at = null,
        expires_at = null, tag = null, attempts = given.attempts, error = coalesce(given.error, m.error),
        origin_id = coalesce(origin_id, m.id)
    from given, block
    where m.id = given.id and m.id = any(%(ids)s::bigint[]) and m.state = 1 and m.node_id = %(node)s
    returning m.queue_id, given.id as given_id, m.origin_id
), tallied as (
    insert into queues_queuetally (queue_id, leased, dead)
    select queue_id, -count(*), count(*) from buried group by queue_id
)
select queue_id, array_agg(given_id) filter (where %(audited)s), array_agg(origin_id) filter (where %(audited)s)
from buried group by queue_id
