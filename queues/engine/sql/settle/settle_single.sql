-- Settle messages that are segments of their own, each with the id that the segment begins with, in the tables that
-- take turns: what is settled is noted, and archived as a message (`keeps`: of which the archive keeps metadata). The
-- arrays are in the order of the ids, as for settle.sql. Returns those that were there: the others have rows of their
-- own.
with given as materialized (
    select id, to_timestamp(delivered) as delivered_at, coalesce(consumer, %(consumer)s::bigint) as consumer_id,
        coalesce(keep, %(keep)s::smallint) as kept, nullif(coalesce(job, %(job)s::bool), false) as job, result
    from unnest(%(ids)s::bigint[], %(delivered)s::float8[], %(consumers)s::bigint[], %(keeps)s::smallint[],
        %(jobs)s::bool[], %(results)b::bytea[]) as g (id, delivered, consumer, keep, job, result)
), staying as materialized (
    select slot, first, queue_id, producer_id, published_at, max_attempts, content, length(bodies[1]) as size
    from queues_segment where slot > 0 and first = any(%(ids)s::bigint[]) order by first for key share
), noted as (
    insert into queues_segmentsettlement (slot, first, low, high, kept) select slot, first, 0, 0, false from staying
), archived as (
    insert into queues_archivedmessage (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at,
        delivered_at, finished_at, max_attempts, size, content, job, result, xid)
    select first, queue_id, 0, 0, producer_id, consumer_id, published_at, delivered_at, now(), max_attempts, size,
        content, job, result, (select pg_current_xact_id()::text::bigint)
    from staying join given on id = first where kept > 0
), tallied as (
    insert into queues_queuetally (slot, queue_id, leased, settled, completed)
    select %(slot)s::smallint, queue_id, -count(*), count(*), count(*) from staying group by queue_id
)
select first from staying
