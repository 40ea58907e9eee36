-- Remove waiting messages whose time to live has passed since a time; `ids`: of these alone (null: of all), and none of
-- `skip`. Returns how many, and from when on to look next.
with late as materialized (
    select id from queues_message where expires_at is not null and expires_at > %(since)s::timestamptz and expires_at <= now() and state in (0, 2)
        and coalesce(id = any(%(ids)s::bigint[]), true) and id <> all(%(skip)s::bigint[])
    order by expires_at limit %(limit)s for update skip locked
), gone as (
    delete from queues_message m where m.id = any(array(select id from late))
    returning m.id, origin_id, queue_id, state, attempts, producer_id, published_at, m.key, length(payload) as size
), known as materialized (
    select gone.*, coalesce(origin_id, gone.id) as first_id, name, retention, audited
    from gone join queues_queue q on q.id = queue_id
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, published_at, finished_at, size, key,
        xid)
    select first_id, queue_id, 1, attempts, producer_id, published_at, now(), size, key,
        (select pg_current_xact_id()::text::bigint)
    from known where retention <> 'none'
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select 'queue:' || name, 'expire', first_id::text, name, ''
    from known where audited order by id
), tallied as (
    insert into queues_queuetally (queue_id, ready, delayed, settled)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 2), count(*)
    from gone group by queue_id
)
select count(*), (now() - interval '10 s')::text from gone
