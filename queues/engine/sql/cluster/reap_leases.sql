-- Give the leases of a dead node back, where they were and with the attempts they had; `ids`: of these messages alone
-- (null: of all), and none of `skip`. One row a queue and kind: id, lowest id, whether these are dead letters, and how
-- many are left since others hold their locks: an acknowledgement of the dying node, perhaps, which would wait for this
-- one in turn. One row without a queue if there is none. Run with sequential scans allowed: leases have no index of
-- their own, since they would pay for it on every publish.
with leased as materialized (
    select id from queues_message where node_id = %(node)s and state in (1, 4)
        and coalesce(id = any(%(ids)s::bigint[]), true) and id <> all(%(skip)s::bigint[])
), picked as materialized (
    select id from queues_message m
    where m.id = any(array(select id from leased)) and node_id = %(node)s and state in (1, 4)
    order by id for update skip locked
), returned as (
    update queues_message m set state = case state when 1 then 0 else 3 end, node_id = null
    where m.id = any(array(select id from picked))
    returning id, queue_id, state
), counted as (
    select queue_id, state, min(id) as low, count(*) as ready from returned group by queue_id, state
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select queue_id, ready, -ready from counted where state = 0
)
select queue_id, low, state = 3 as dead, locked
from (select (select count(*) from leased) - (select count(*) from picked) as locked) as l left join counted on true
