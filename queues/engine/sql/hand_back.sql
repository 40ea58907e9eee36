-- Make messages that this node leased and did not use ready again, where they were. One row a queue: id, lowest id.
with given as (
    select * from unnest(%(ids)s::bigint[], %(tags)s::bigint[]) as g (id, tag)
), returned as (
    update queues_message m set state = case state when 1 then 0 else 3 end, node_id = null,
        tag = coalesce(given.tag, m.tag)
    from given
    where m.id = given.id and m.id = any(%(ids)s::bigint[]) and m.state in (1, 4) and m.node_id = %(node)s
    returning m.id, m.queue_id, m.state
), counted as (
    select queue_id, min(id) as low, count(*) as ready from returned where state = 0 group by queue_id
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased) select queue_id, ready, -ready from counted
)
select queue_id, low from counted
