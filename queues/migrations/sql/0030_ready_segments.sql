-- Plain messages that were published together are a segment also while they wait: one without a node is ready.
alter table queues_segment alter column node_id drop not null;
drop index queues_segment_queue;
create index queues_segment_queue on queues_segment (queue_id, first);
create index queues_segment_ready on queues_segment (queue_id, first) where node_id is null;
drop index queues_segment_node;
create index queues_segment_node on queues_segment (node_id) where node_id is not null;

create or replace function queues_unpack_segments(wanted bigint[], waiting boolean default true) returns bigint[]
language plpgsql as $$
-- Give each open message of these segments a row of its own, as if it had been stored so, and archive the settled ones;
-- no count changes. Settlements under way are waited for, or with `waiting` off their segments are left. Returns the
-- segments that were found.
declare
    found bigint[];
begin
    if waiting then
        found := array(select first from queues_segment where first = any(wanted) order by first for update);
    else
        found := array(select first from queues_segment where first = any(wanted) order by first for update skip locked);
    end if;
    if found = '{}' then
        return found;
    end if;
    insert into queues_message (id, queue_id, state, node_id, producer_id, published_at, max_attempts, content, payload)
    select id, queue_id, case when node_id is null then 0 else 1 end, node_id, producer_id, published_at, max_attempts,
        content, body
    from (
        select s.first + n - 1 as id, queue_id, node_id, producer_id, published_at, max_attempts, content, body
        from queues_segment s, unnest(bodies) with ordinality as slot (body, n) where s.first = any(found)
    ) as message left join (
        select t.first + n as id, true as settled
        from queues_segmentsettlement t, generate_series(low, high) as n where t.first = any(found)
    ) as done using (id)
    where settled is null;
    insert into queues_archivedsegment (first, count, queue_id, producer_id, published_at, finished_at, max_attempts,
        content, sizes, lows, highs, consumers, delivered, jobs)
    select s.first, count, queue_id, producer_id, published_at, now(), max_attempts, content,
        array(select length(body) from unnest(bodies) with ordinality as slot (body, n) order by n),
        lows, highs, consumers, delivered, jobs
    from queues_segment s join (
        select first, array_agg(low order by low) as lows, array_agg(high order by low) as highs,
            array_agg(consumer_id order by low) as consumers, array_agg(delivered_at order by low) as delivered,
            array_agg(job order by low) as jobs
        from queues_segmentsettlement where first = any(found) and kept group by first
    ) as settled on settled.first = s.first
    where s.first = any(found);
    delete from queues_segmentsettlement where first = any(found);
    delete from queues_segment where first = any(found);
    return found;
end $$;

create function queues_unpack_ready(queue integer, messages bigint) returns bigint[]
language sql as $$
-- Give the messages of a queue's oldest ready segments rows of their own, until that are so many; segments that others
-- have locked are left. Returns the segments.
    select queues_unpack_segments(array(
        select first from (
            select first, sum(count) over (order by first) - count as before from queues_segment
            where node_id is null and queue_id = queue
        ) as oldest where before < messages
    ), false)
$$;

create or replace view queues_openmessage as
-- Every message that is not finished, however it is stored.
select id, queue_id, state, attempts, max_attempts, node_id, producer_id, published_at, due_at, expires_at, dead_at,
    origin_id, tag, content, retry_interval, key, headers, error, payload
from queues_message
union all
select s.first + n - 1, queue_id, (case when node_id is null then 0 else 1 end)::smallint, 0::smallint, max_attempts,
    node_id, producer_id, published_at, null, null, null, null, null, content, null, null, null, null, body
from queues_segment s, unnest(bodies) with ordinality as slot (body, n)
where not exists (select from queues_segmentsettlement t where t.first = s.first and n - 1 between t.low and t.high);
alter view queues_openmessage alter column attempts set default 0;
alter view queues_openmessage alter column published_at set default now();

create or replace function queues_drop_temporary(lock_class integer, among integer[]) returns integer
language plpgsql volatile as $$
-- Delete those of these temporary queues without a consumer, with their messages; returns how many. A new consumer
-- takes the lock first and then looks whether the queue is still there. Publishes are kept out meanwhile.
declare
    dropped integer[];
begin
    perform pg_advisory_xact_lock(hashtext('queues_topology'));
    dropped := array(
        select queue_id from queues_temporaryqueue
        where queue_id = any(among) and pg_try_advisory_xact_lock(lock_class, queue_id)
            and not exists (select from queues_held(queue_id) where leased > 0));
    delete from queues_message where queue_id = any(dropped) and state = 0;
    delete from queues_message where queue_id = any(dropped) and state = 2;
    delete from queues_message where queue_id = any(dropped) and state = 3;
    delete from queues_segment where queue_id = any(dropped) and node_id is null;
    update queues_queue set dead_letter_queue_id = null where dead_letter_queue_id = any(dropped);
    delete from queues_queuecount where queue_id = any(dropped);
    delete from queues_queue where id = any(dropped);
    return cardinality(dropped);
end $$;
