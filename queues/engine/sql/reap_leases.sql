-- Give the leases of a dead node back, where they were and with the attempts they had. One row a queue
-- and kind: id, lowest id, whether these are dead letters.
-- Run with sequential scans allowed: leases have no index of their own, since they would pay for it on every publish.
with returned as (
    update queues_message set state = case state when 1 then 0 else 3 end, node_id = null
    where node_id = %(node)s and state in (1, 4)
    returning id, queue_id, state
), counted as (
    select queue_id, state, min(id) as low, count(*) as ready from returned group by queue_id, state
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select queue_id, ready, -ready from counted where state = 0
)
select queue_id, low, state = 3 as dead from counted
