-- A message with which nothing else can be done becomes a dead letter of its queue, if it waits, or is leased to
-- `node`, and no other transaction has it locked. One row then: its id.
with picked as materialized (
    select id, state from queues_message m
    where m.id = any(%(ids)s::bigint[]) and (state in (0, 2) or (state in (1, 4) and node_id = %(node)s::int))
    for update skip locked
), buried as (
    update queues_message m set state = 3, node_id = null, dead_at = now(), due_at = null, expires_at = null,
        tag = null, error = %(error)s
    where m.id = any(array(select id from picked))
    returning m.queue_id, m.id, coalesce(m.origin_id, m.id) as first_id
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, dead)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 1),
        -count(*) filter (where state = 2), count(*) filter (where state <> 4)
    from buried join picked using (id) group by queue_id
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select 'queue:' || name, 'dead-letter', first_id::text, name, ''
    from buried join queues_queue q on q.id = queue_id where audited
)
select id from buried
