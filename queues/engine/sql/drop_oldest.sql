-- Remove the oldest ready messages of a queue, to make room for as many new ones. Returns how many.
with gone as (
    delete from queues_message where id = any(array(
        select id from queues_message
        where state = 0 and (queue_id, id) > (%(queue)s, -9223372036854775807)
            and (queue_id, id) <= (%(queue)s, 9223372036854775807)
        order by queue_id, id limit %(count)s for update skip locked))
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
