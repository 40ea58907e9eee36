-- Take the oldest messages of a queue in one state out of the store; with `ids` only those. What nodes are about to
-- change is left alone, and what has an id above `high`, without the priority in its highest byte. `outcome` is one of the archive's. In an audited queue each is recorded as `event`, `by` whom;
-- with `named` so it is in the chain of operators. Returns how many.
with picked as materialized ( -- not IN (select ... limit ...), which some plans run once for each message
    select id from queues_message
    where queue_id = %(queue)s and state = %(state)s and (id & 72057594037927935) <= %(high)s
        and (%(ids)s::bigint[] is null or id = any(%(ids)s::bigint[]))
    order by id limit %(limit)s for update skip locked
), gone as (
    delete from queues_message where id = any(array(select id from picked))
    returning id, origin_id, queue_id, state, attempts, producer_id, published_at, key, length(payload) as size
), known as materialized (
    select gone.*, coalesce(origin_id, gone.id) as first_id, name, retention, audited
    from gone join queues_queue q on q.id = queue_id
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, published_at, finished_at, size, key)
    select first_id, queue_id, %(outcome)s, attempts, producer_id, published_at, now(), size, key
    from known where retention <> 'none'
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select chain, %(event)s, record_id, %(by)s, recipient
    from (select id, 'queue:' || name as chain, first_id::text as record_id, '' as recipient from known where audited
        union all select id, 'operators', 'message:' || first_id, name from known
            where %(named)s) as told
    order by id
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, dead, settled)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 1),
        -count(*) filter (where state = 2), -count(*) filter (where state in (3, 4)), count(*)
    from gone group by queue_id
)
select count(*) from gone
