-- Settle slots of segments: `firsts` and the ranges `lows` … `highs` of each, by whom and when they were delivered
-- (Unix times), whether they were jobs and whether the archive keeps them. With these, the segments in `whole` have no
-- open message left: they go to the archive as one row, and leave the store, unless they stand in a table that takes
-- turns. What is settled of all others is noted beside them. Bodies are not read, but of segments that nodes of an
-- earlier version have stored without their sizes. Returns the segments that were there: the messages of others have
-- rows of their own.
with given as materialized (
    select first, low, high, consumer_id, to_timestamp(delivered) as delivered_at, nullif(job, false) as job,
        kept
    from unnest(%(firsts)s::bigint[], %(lows)s::int[], %(highs)s::int[], %(consumers)s::bigint[],
        %(delivered)s::float8[], %(jobs)s::bool[], %(kept)s::bool[]) as g (first, low, high, consumer_id, delivered, job, kept)
), gone as (
    delete from queues_segment where slot = 0 and first = any(%(whole)s::bigint[])
    returning first, queue_id, producer_id, count, published_at, max_attempts, content,
        coalesce(sizes, array(select length(body) from unnest(bodies) as body)) as sizes
), staying as materialized (
    select slot, first, queue_id, producer_id, count, published_at, max_attempts, content, bodies, bodies_id, sizes
    from queues_segment where slot > 0 and first = any(%(whole)s::bigint[]) order by first for key share
), shared as materialized (
    select slot, id as bodies_id, coalesce(sizes, array(select length(body) from unnest(bodies) as body)) as sizes
    from queues_segmentbody where id = any(array(select distinct bodies_id from staying where bodies_id is not null))
), partly as materialized (
    select slot, first, queue_id from queues_segment where first = any(%(parts)s::bigint[]) order by first for key share
), noted as (
    insert into queues_segmentsettlement (slot, first, low, high, consumer_id, delivered_at, job, kept)
    select slot, first, low, high, consumer_id, delivered_at, job, kept
    from given join (select slot, first from partly union all select slot, first from staying) as segment using (first)
), earlier as (
    delete from queues_segmentsettlement where slot = 0 and first = any(%(whole)s::bigint[])
    returning first, low, high, consumer_id, delivered_at, job, kept
), archived as (
    insert into queues_archivedsegment (first, count, queue_id, producer_id, published_at, finished_at, max_attempts,
        content, sizes, lows, highs, consumers, delivered, jobs)
    select first, count, queue_id, producer_id, published_at, now(), max_attempts, content,
        case when cardinality(sizes) = 1 then array_fill(sizes[1], array[count]) else sizes end, lows, highs, consumers,
        delivered, jobs
    from (
        select first, count, queue_id, producer_id, published_at, max_attempts, content, sizes from gone
        union all
        select first, count, queue_id, producer_id, published_at, max_attempts, content,
            coalesce(staying.sizes, shared.sizes, array(select length(body) from unnest(bodies) as body))
        from staying left join shared using (slot, bodies_id)
    ) as segment join (
        select first, array_agg(low order by low) as lows, array_agg(high order by low) as highs,
            array_agg(consumer_id order by low) as consumers, array_agg(delivered_at order by low) as delivered,
            array_agg(job order by low) as jobs
        from (
            select * from given
            union all select * from earlier
            union all select first, low, high, consumer_id, delivered_at, job, kept from queues_segmentsettlement
            where slot > 0 and first = any(%(whole)s::bigint[])
        ) as range where kept group by first
    ) as settled using (first)
), tallied as (
    insert into queues_queuetally (slot, queue_id, leased, settled, completed)
    select %(slot)s::smallint, queue_id, -n, n, n
    from (
        select queue_id, sum(high - low + 1) as n
        from given join (
            select first, queue_id from gone union all select first, queue_id from staying
            union all select first, queue_id from partly
        ) as segment using (first)
        group by queue_id
    ) as counted
)
select first from gone union all select first from staying union all select first from partly
