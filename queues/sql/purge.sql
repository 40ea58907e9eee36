-- Take the oldest messages of a queue in one state out of the store; with `ids` only those. What nodes are about to
-- change is left alone, and what has an id above `high`, without the priority in its highest byte. `outcome` is one of
-- the archive's. In an audited queue each is recorded as `event`, `by` whom; with `named` so it is in the chain of
-- operators. Ready segments with no later message go as they are, unless each of their messages is to be recorded: see
-- unpack_oldest.sql for the others. Returns how many messages.
with recursive cause as (
    select %(outcome)s::smallint as outcome, %(event)s::text as event, %(by)s::text as by, %(named)s::bool as named,
        false as whole
), picked as ( -- not IN (select ... limit ...), which some plans run once for each message
    select array(select id from queues_message
    where queue_id = %(queue)s and state = %(state)s and (id & 72057594037927935) <= %(high)s
        and (%(ids)s::bigint[] is null or id = any(%(ids)s::bigint[]))
    order by id limit %(limit)s for update skip locked) as ids
), whole as (
    select array(select first from queues_segment
    where %(ids)s::bigint[] is null and %(state)s = 0 and slot = 0 and node_id is null
        and (queue_id, first) > (%(queue)s, 0)
        and (queue_id, first) <= (%(queue)s, (select queues_last_segment(%(queue)s, 0::smallint, 0, %(limit)s)))
        and first + count - 1 <= %(high)s and not (select audited from queues_queue where id = %(queue)s)
    order by queue_id, first for update skip locked) as firsts
), segments as (
    delete from queues_segment where slot = 0 and first = any((select firsts from whole)::bigint[])
    returning first, count, producer_id, published_at, max_attempts, content,
        case when (select retention from queues_queue where id = %(queue)s) <> 'none' then array(
            select length(body) from unnest(bodies) as body) end as sizes
), segments_archived as (
    insert into queues_archivedsegment (first, count, queue_id, outcome, producer_id, published_at, finished_at,
        max_attempts, content, sizes, lows, highs, consumers, delivered, jobs)
    select first, count, %(queue)s, (select outcome from cause), producer_id, published_at, now(), max_attempts,
        content,
        sizes, array[0], array[count - 1], array[null::bigint], array[null::timestamptz], array[null::boolean]
    from segments where sizes is not null
), segments_tallied as (
    insert into queues_queuetally (queue_id, ready, settled)
    select %(queue)s, -sum(count), sum(count) from segments having count(*) > 0
),
\ir ../engine/sql/parts/remove.sql
select (select count(*) from gone) + (select coalesce(sum(count), 0) from segments)
