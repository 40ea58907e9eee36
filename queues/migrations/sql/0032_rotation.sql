-- Segments that are leased when they are stored, what is settled of them, and tallies stand in tables that take turns
-- (slots 1, 2, 3): rows are only inserted, and a table in which nothing is open is truncated. Nothing of that is left to
-- vacuum. What changes, and what waits, is in slot 0 as before.

drop view queues_openmessage;
drop view queues_segmentmessage;

alter table queues_segment rename to queues_segment_kept;
alter table queues_segment_kept add column slot smallint not null default 0 constraint kept check (slot = 0);
create table queues_segment (like queues_segment_kept including defaults including storage) partition by list (slot);
alter table queues_segment attach partition queues_segment_kept for values in (0);

alter table queues_segmentsettlement rename to queues_segmentsettlement_kept;
alter table queues_segmentsettlement_kept
    add column slot smallint not null default 0 constraint kept check (slot = 0);
create table queues_segmentsettlement (like queues_segmentsettlement_kept including defaults) partition by list (slot);
alter table queues_segmentsettlement attach partition queues_segmentsettlement_kept for values in (0);

alter table queues_queuetally rename to queues_queuetally_kept;
alter table queues_queuetally_kept add column slot smallint not null default 0 constraint kept check (slot = 0);
-- A partition has no identity column before PostgreSQL 17.
create sequence queues_tally_id as bigint cache 1;
select setval('queues_tally_id', greatest(1, (select max(id) from queues_queuetally_kept)));
alter table queues_queuetally_kept alter column id drop identity;
alter table queues_queuetally_kept alter column id set default nextval('queues_tally_id');
create table queues_queuetally (like queues_queuetally_kept including defaults) partition by list (slot);
alter table queues_queuetally attach partition queues_queuetally_kept for values in (0);

do $$
declare
    slot integer;
begin
    for slot in 1..3 loop
        execute format('create table queues_segment_%1$s partition of queues_segment for values in (%1$s)
            with (autovacuum_enabled = false, toast.autovacuum_enabled = false)', slot);
        execute format('create index queues_segment_%1$s_first on queues_segment_%1$s (first)', slot);
        execute format('create index queues_segment_%1$s_queue on queues_segment_%1$s (queue_id, first)', slot);
        execute format('create table queues_segmentsettlement_%1$s partition of queues_segmentsettlement
            for values in (%1$s) with (autovacuum_enabled = false)', slot);
        execute format('create index queues_segmentsettlement_%1$s_first on queues_segmentsettlement_%1$s (first)', slot);
        execute format('create table queues_queuetally_%1$s partition of queues_queuetally for values in (%1$s)
            with (autovacuum_enabled = false)', slot);
        execute format('create index queues_queuetally_%1$s_queue on queues_queuetally_%1$s (queue_id)', slot);
    end loop;
end $$;

create view queues_opensegment as
-- Segments with open messages: in the tables that take turns finished ones stay until these are truncated. Most are settled
-- by one range.
select * from queues_segment where slot = 0
union all
select * from queues_segment s where slot > 0 and not exists (
    select from queues_segmentsettlement t where t.slot = s.slot and t.first = s.first and t.high - t.low = s.count - 1
) and count > coalesce((
    select sum(high - low + 1) from queues_segmentsettlement t where t.slot = s.slot and t.first = s.first), 0);

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
    -- In a statement of its own: it sees what was settled while the lock was waited for.
    found := array(select first from queues_opensegment where first = any(found));
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

create or replace function queues_unpack_ready(queue integer, messages bigint) returns bigint[]
language sql as $$
-- Give the messages of a queue's oldest ready segments rows of their own, until that are so many; segments that others
-- have locked are left. Returns the segments.
    select queues_unpack_segments(array(
        select first from (
            select first, sum(count) over (order by first) - count as before from queues_segment
            where slot = 0 and node_id is null and queue_id = queue
        ) as oldest where before < messages
    ), false)
$$;

create view queues_segmentmessage as
-- The open messages of segments. With one state or the other, a condition on `state` leaves one of the two.
select s.first + n - 1 as id, queue_id, 0::smallint as state, max_attempts, null::integer as node_id, producer_id,
    published_at, content, body as payload, s.first as segment
from queues_segment s, unnest(bodies) with ordinality as place (body, n) where slot = 0 and node_id is null
union all
select s.first + n - 1, queue_id, 1::smallint, max_attempts, node_id, producer_id, published_at, content, body, s.first
from queues_segment s, unnest(bodies) with ordinality as place (body, n)
where node_id is not null and not exists (
    select from queues_segmentsettlement t where t.slot = s.slot and t.first = s.first and n - 1 between t.low and t.high);

create view queues_openmessage as
-- Every message that is not finished, however it is stored.
select id, queue_id, state, attempts, max_attempts, node_id, producer_id, published_at, due_at, expires_at, dead_at,
    origin_id, tag, content, retry_interval, key, headers, error, payload, id as segment
from queues_message
union all
select id, queue_id, state, 0::smallint, max_attempts, node_id, producer_id, published_at, null, null, null, null, null,
    content, null, null, null, null, payload, segment
from queues_segmentmessage;
alter view queues_openmessage alter column attempts set default 0;
alter view queues_openmessage alter column published_at set default now();
create trigger change_openmessage instead of insert or update or delete on queues_openmessage
    for each row execute function queues_change_openmessage();

create or replace function queues_last_segment(queue integer, wanted smallint, after bigint, messages bigint) returns bigint
language plpgsql stable set enable_sort = off as $$
-- The greatest value of `segment` of the next so many messages beyond the id `after`, of a queue (null: of all) in one
-- state (null: in any), or a greater one. Reads the segments up to there, some at a time, and no bodies. Without sorting,
-- whatever the statistics say: they are read in the order of an index, and no further.
declare
    beyond constant bigint := 9223372036854775807;
    chunk constant integer := 50;
    -- Compared as rows: only an index of the queue gives this order.
    statement constant text := format(
        'select s.first, open from queues_segment s, lateral (select count - coalesce((
            select sum(high - low + 1) from queues_segmentsettlement t where t.slot = s.slot and t.first = s.first
        ), 0) as open) as counted
        where open > 0 and %s and %s limit %s',
        case wanted when 0 then 'slot = 0 and node_id is null' when 1 then 'node_id is not null' else 'true' end,
        case when queue is null then 's.first > $2 order by s.first'
            else '(queue_id, s.first) > ($1, $2) and (queue_id, s.first) <= ($1, $3) order by queue_id, s.first' end,
        chunk);
    total bigint := 0;
    read integer := chunk;
    found record;
begin
    if wanted not in (0, 1) then
        return beyond;
    end if;
    while read = chunk loop
        read := 0;
        for found in execute statement using queue, after, beyond loop
            read := read + 1;
            total := total + found.open;
            if total >= messages then
                return found.first;
            end if;
            after := found.first;
        end loop;
    end loop;
    return beyond;
end $$;

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
    delete from queues_segment where slot = 0 and queue_id = any(dropped) and node_id is null;
    update queues_queue set dead_letter_queue_id = null where dead_letter_queue_id = any(dropped);
    delete from queues_queuecount where queue_id = any(dropped);
    delete from queues_queue where id = any(dropped);
    return cardinality(dropped);
end $$;

create function queues_lock_slot(tables text[]) returns boolean
language plpgsql as $$
-- Keep others from adding to these tables whose turn is over; false: they are used. Reading goes on. Others queue up behind
-- the truncation that follows, so that transactions which last are not waited for.
begin
    if not pg_try_advisory_xact_lock(hashtext('queues_rotate')) or exists (
        select from pg_locks l join pg_stat_activity a using (pid)
        where l.locktype = 'relation' and l.granted and a.xact_start < now() - interval '0.5 s'
            and l.relation = any(tables::regclass[])
            and l.database = (select oid from pg_database where datname = current_database())
    ) then
        return false;
    end if;
    set local lock_timeout = '100ms';
    execute format('lock table %s in share mode', array_to_string(tables, ', '));
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;

create function queues_truncate(tables text[]) returns boolean
language plpgsql as $$
-- Truncate tables; false: they are used.
begin
    execute format('truncate %s', array_to_string(tables, ', '));
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;

create function queues_rotate_segments(turn integer) returns boolean
language plpgsql set enable_seqscan = on as $$
-- Truncate the segments of a slot whose turn is over, and what is settled of them; false: some are open, or they are used.
declare
    tables constant text[] := array[format('queues_segment_%s', turn), format('queues_segmentsettlement_%s', turn)];
begin
    -- Not by their rows: those that were moved may have left room that is not used again.
    if pg_relation_size(tables[1]::regclass) + pg_relation_size(tables[2]::regclass) = 0 then
        return true;
    end if;
    if not queues_lock_slot(tables) then
        return false;
    end if;
    -- By itself: a table cannot be truncated within a query that reads it.
    if exists (select from queues_opensegment where slot = turn) then
        return false;
    end if;
    return queues_truncate(tables);
end $$;

create function queues_rotate_tallies(turn integer) returns boolean
language plpgsql set enable_seqscan = on as $$
-- Add the tallies of a slot whose turn is over to the queues' counts, and truncate them; false: they are used.
declare
    tables constant text[] := array[format('queues_queuetally_%s', turn)];
begin
    if pg_relation_size(tables[1]::regclass) = 0 then
        return true;
    end if;
    if not queues_lock_slot(tables) then
        return false;
    end if;
    insert into queues_queuecount as c (queue_id, ready, leased, delayed, dead, published, settled, completed)
    select queue_id, sum(t.ready), sum(t.leased), sum(t.delayed), sum(t.dead), sum(published), sum(settled), sum(completed)
    from queues_queuetally t join queues_queue q on q.id = queue_id where slot = turn group by queue_id order by queue_id
    on conflict (queue_id) do update set ready = c.ready + excluded.ready, leased = c.leased + excluded.leased,
        delayed = c.delayed + excluded.delayed, dead = c.dead + excluded.dead,
        published = c.published + excluded.published, settled = c.settled + excluded.settled,
        completed = c.completed + excluded.completed;
    if not queues_truncate(tables) then
        raise lock_not_available;
    end if;
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;
