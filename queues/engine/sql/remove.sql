-- Take messages out of the store by an operator's hand. `outcome` is one of the archive's. Returns how many.
with gone as (
    delete from queues_message where id = any(%(ids)s::bigint[])
    returning id, origin_id, queue_id, state, attempts, producer_id, published_at, key, length(payload) as size
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, published_at, finished_at, size, key)
    select coalesce(origin_id, gone.id), queue_id, %(outcome)s, attempts, producer_id, published_at, now(), size,
        gone.key
    from gone join queues_queue q on q.id = queue_id where q.retention <> 'none'
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, dead, settled)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 1),
        -count(*) filter (where state = 2), -count(*) filter (where state in (3, 4)), count(*)
    from gone group by queue_id
)
select count(*) from gone
