-- Remove the oldest ready messages of a queue, to make room for as many new ones. Returns how many.
with gone as (
    delete from queues_message where id = any(array(
        select id from queues_message
        where state = 0 and (queue_id, id) > (%(queue)s, -9223372036854775807)
            and (queue_id, id) <= (%(queue)s, 9223372036854775807)
        order by queue_id, id limit %(count)s for update skip locked))
    returning id, origin_id, queue_id, attempts, producer_id, published_at, key, length(payload) as size
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, published_at, finished_at, size, key)
    select coalesce(origin_id, gone.id), queue_id, 3, attempts, producer_id, published_at, now(), size, gone.key
    from gone join queues_queue q on q.id = queue_id where q.retention <> 'none'
), tallied as (
    insert into queues_queuetally (queue_id, ready, settled)
    select queue_id, -count(*), count(*) from gone group by queue_id
)
select count(*) from gone
