-- Take the oldest messages of a queue in one state out of the store; with `ids` only those. What nodes are about to
-- change is left alone. `outcome` is one of the archive's. Returns how many.
with gone as (
    delete from queues_message where id in (
        select id from queues_message
        where queue_id = %(queue)s and state = %(state)s and id <= %(high)s
            and (%(ids)s::bigint[] is null or id = any(%(ids)s::bigint[]))
        order by id limit %(limit)s for update skip locked)
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
