-- Give leased messages back to the tail of their queues: at once, or after a delay in seconds; and dead letters behind
-- the others.
-- A message gets a new id and keeps its first one. One row a queue: id, lowest new id, how many are ready, delayed; with
-- `audited` also the ids that they had, and their first ones in the same order; how many are dead letters.
with block as materialized (
    select nextval('queues_message_id') as first where pg_current_xact_id() is not null
), given as materialized (
    select * from unnest(%(ids)s::bigint[], %(attempts)s::smallint[], %(delays)s::float8[], %(tags)s::bigint[],
        %(errors)s::text[]) with ordinality as g (id, attempts, delay, tag, error, n)
), returned as (
    update queues_message m set
        id = first + n - 1 + ((m.id >> 56) << 56), node_id = null,
        state = case when m.state = 4 then 3 when delay > 0 then 2 else 0 end,
        due_at = case when m.state = 1 and delay > 0 then now() + make_interval(secs => delay) end,
        attempts = given.attempts, tag = given.tag, error = coalesce(given.error, m.error),
        origin_id = coalesce(origin_id, m.id)
    from given, block
    where m.id = given.id and m.id = any(%(ids)s::bigint[]) and m.state in (1, 4) and m.node_id = %(node)s
    returning m.id, m.queue_id, m.state, m.origin_id, given.id as given_id
), counted as (
    select queue_id, min(id) as low, count(*) filter (where state = 0) as ready,
        count(*) filter (where state = 2) as delayed, count(*) filter (where state = 3) as dead,
        array_agg(given_id) filter (where %(audited)s) as ids,
        array_agg(origin_id) filter (where %(audited)s) as first_ids
    from returned group by queue_id
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed)
    select queue_id, ready, -(ready + delayed), delayed from counted where ready + delayed > 0
)
select queue_id, low, ready, delayed, ids, first_ids, dead from counted
