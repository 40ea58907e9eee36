-- Remove waiting messages whose time to live has passed. Returns how many.
with late as materialized (
    select id from queues_message where expires_at is not null and expires_at <= now() and state in (0, 2)
    order by expires_at limit %(limit)s for update skip locked
), gone as (
    delete from queues_message m where m.id = any(array(select id from late))
    returning m.id, origin_id, queue_id, state, attempts, producer_id, published_at, m.key, length(payload) as size
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, published_at, finished_at, size, key)
    select coalesce(origin_id, gone.id), queue_id, 1, attempts, producer_id, published_at, now(), size, gone.key
    from gone join queues_queue q on q.id = queue_id where q.retention <> 'none'
), tallied as (
    insert into queues_queuetally (queue_id, ready, delayed, settled)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 2), count(*)
    from gone group by queue_id
)
select count(*) from gone
