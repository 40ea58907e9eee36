-- Remove ready messages of a queue to make room for as many new ones: those of the lowest priority first, the oldest of
-- them first; `ids`: of these alone (null: of all), and none of `skip`. Returns how many. The highest byte of an id is the priority, negated: from the last id down, one probe finds
-- each priority that there is.
with recursive class as (
    (select id >> 56 as p from queues_message
    where state = 0 and (queue_id, id) > (%(queue)s, -9223372036854775807)
        and (queue_id, id) <= (%(queue)s, 9223372036854775807)
    order by queue_id desc, id desc limit 1)
    union all
    select (select m.id >> 56 from queues_message m
        where m.state = 0 and (m.queue_id, m.id) > (%(queue)s, -9223372036854775807)
            and (m.queue_id, m.id) < (%(queue)s, class.p << 56)
        order by m.queue_id desc, m.id desc limit 1)
    from class where class.p is not null
), oldest as materialized (
    select picked.id, class.p from class, lateral (
        select m.id from queues_message m
        where m.state = 0 and (m.queue_id, m.id) >= (%(queue)s, class.p << 56)
            and (m.queue_id, m.id) <= (%(queue)s, (class.p << 56) | 72057594037927935)
            and coalesce(m.id = any(%(ids)s::bigint[]), true) and m.id <> all(%(skip)s::bigint[])
        order by m.queue_id, m.id limit %(count)s for update skip locked) as picked
    where class.p is not null
    order by class.p desc, picked.id limit %(count)s
), gone as (
    delete from queues_message where id = any(array(select id from oldest))
    returning id, origin_id, queue_id, attempts, producer_id, published_at, key, length(payload) as size
), known as materialized (
    select gone.*, coalesce(origin_id, gone.id) as first_id, name, retention, audited
    from gone join queues_queue q on q.id = queue_id
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, published_at, finished_at, size, key,
        xid)
    select first_id, queue_id, 3, attempts, producer_id, published_at, now(), size, key,
        (select pg_current_xact_id()::text::bigint)
    from known where retention <> 'none'
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select 'queue:' || name, 'drop', first_id::text, name, ''
    from known where audited order by id
), tallied as (
    insert into queues_queuetally (queue_id, ready, settled)
    select queue_id, -count(*), count(*) from gone group by queue_id
)
select count(*) from gone
