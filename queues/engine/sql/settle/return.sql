-- Give up leases. As `how` says, the messages go to the tail of their queues, at once or after a delay in seconds, and
-- dead letters behind the others (0); become dead letters of their queues, behind those that are there (1); or are what
-- they were, where they were, as this node did not use them (2). At the tail a message gets a new id and keeps its
-- first one. An array that is null changes nothing. One row a queue: id, lowest id that is ready or null, how many are
-- dead letters; with `audited` also the ids that they had, and their first ones in the same order; whether the queue
-- drops its oldest when it holds too many.
with block as materialized (
    select nextval('queues_message_id') as first where pg_current_xact_id() is not null
), given as materialized (
    select * from unnest(%(ids)s::bigint[], %(attempts)s::smallint[], %(delays)s::float8[], %(tags)s::bigint[],
        %(errors)s::text[]) with ordinality as g (id, attempts, delay, tag, error, n)
), returned as (
    update queues_message m set
        id = case when %(how)s = 2 then m.id else first + n - 1 + ((m.id >> 56) << 56) end,
        origin_id = case when %(how)s = 2 then origin_id else coalesce(origin_id, m.id) end,
        state = case when %(how)s = 1 or m.state = 4 then 3 when delay > 0 then 2 else 0 end, node_id = null,
        due_at = case when %(how)s = 2 then due_at
            when %(how)s = 0 and m.state = 1 and delay > 0 then now() + make_interval(secs => delay) end,
        tag = case when %(how)s = 2 then coalesce(given.tag, m.tag) when %(how)s = 0 then given.tag end,
        dead_at = case when %(how)s = 1 then now() else dead_at end,
        expires_at = case when %(how)s <> 1 then expires_at end,
        attempts = coalesce(given.attempts, m.attempts), error = coalesce(given.error, m.error)
    from given, block
    where m.id = given.id and m.id = any(%(ids)s::bigint[]) and m.state in (1, 4) and m.node_id = %(node)s
        and (m.state = 1 or %(how)s <> 1)
    returning m.id, m.queue_id, m.state, coalesce(m.origin_id, m.id) as first_id, given.id as given_id
), counted as (
    select queue_id, min(id) filter (where state = 0) as low, count(*) filter (where state = 0) as ready,
        count(*) filter (where state = 2) as delayed, count(*) filter (where state = 3) as dead,
        case when %(how)s = 1 then count(*) else 0 end as buried,
        array_agg(given_id) filter (where %(audited)s) as ids,
        array_agg(first_id) filter (where %(audited)s) as first_ids
    from returned group by queue_id
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, dead)
    select queue_id, ready, -(ready + delayed + buried), delayed, buried from counted where ready + delayed + buried > 0
)
select queue_id, low, dead, ids, first_ids,
    (select max_length is not null and overflow = 'drop-oldest' from queues_queue where id = queue_id) as drops
from counted
