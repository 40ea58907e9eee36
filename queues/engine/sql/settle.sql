-- Remove acknowledged messages of queues that keep nothing of them. Returns how many there were.
with gone as (
    delete from queues_message where id = any(%(ids)s::bigint[]) returning queue_id, state
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, dead, settled, completed)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 1),
        -count(*) filter (where state = 2), -count(*) filter (where state in (3, 4)), count(*), count(*)
    from gone group by queue_id
)
select count(*) from gone
