-- Give the leases of a dead node back, where they were and with the attempts they had. One row a queue: id, lowest id.
-- Run with sequential scans allowed: leases have no index of their own, since they would pay for it on every publish.
with returned as (
    update queues_message set state = case state when 1 then 0 else 3 end, node_id = null
    where node_id = %(node)s and state in (1, 4)
    returning id, queue_id, state
), counted as (
    select queue_id, min(id) as low, count(*) as ready from returned where state = 0 group by queue_id
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased) select queue_id, ready, -ready from counted
)
select queue_id, low from counted
