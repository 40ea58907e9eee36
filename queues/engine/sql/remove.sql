-- Take messages that are ready, or leased to this node, out of the store by an operator's hand, `by` whom stands in the
-- audit chain of an audited queue; `outcome` is one of the archive's. Returns how many.
with gone as (
    delete from queues_message where id = any(%(ids)s::bigint[]) and (state = 0 or node_id = %(node)s)
    returning id, origin_id, queue_id, state, attempts, producer_id, published_at, key, length(payload) as size
), known as materialized (
    select gone.*, coalesce(origin_id, gone.id) as first_id, name, retention, audited
    from gone join queues_queue q on q.id = queue_id
), archived as (
    insert into queues_archive (id, queue_id, outcome, attempts, producer_id, published_at, finished_at, size, key,
        xid)
    select first_id, queue_id, %(outcome)s, attempts, producer_id, published_at, now(), size, key,
        (select pg_current_xact_id()::text::bigint)
    from known where retention <> 'none'
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select 'queue:' || name, 'purge', first_id::text, %(by)s, ''
    from known where audited order by id
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, delayed, dead, settled)
    select queue_id, -count(*) filter (where state = 0), -count(*) filter (where state = 1),
        -count(*) filter (where state = 2), -count(*) filter (where state in (3, 4)), count(*)
    from gone group by queue_id
)
select count(*) from gone
