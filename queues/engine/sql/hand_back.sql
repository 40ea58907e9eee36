-- Make messages that this node leased and did not use ready again, where they were. One row a queue
-- and kind: id, lowest id, whether these are dead letters; with `audited` also their ids, and their first ones in the same
-- order.
with given as (
    select * from unnest(%(ids)s::bigint[], %(tags)s::bigint[]) as g (id, tag)
), returned as (
    update queues_message m set state = case state when 1 then 0 else 3 end, node_id = null,
        tag = coalesce(given.tag, m.tag)
    from given
    where m.id = given.id and m.id = any(%(ids)s::bigint[]) and m.state in (1, 4) and m.node_id = %(node)s
    returning m.id, m.queue_id, m.state, coalesce(m.origin_id, m.id) as first_id
), counted as (
    select queue_id, state, min(id) as low, count(*) as ready, array_agg(id) filter (where %(audited)s) as ids,
        array_agg(first_id) filter (where %(audited)s) as first_ids
    from returned group by queue_id, state
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select queue_id, ready, -ready from counted where state = 0
)
select queue_id, low, state = 3 as dead, ids, first_ids from counted
