-- Messages of a topic that are leased in several queues are stored once: their segments, in tables that take turns, name the
-- bodies, which stand in a table of the same turn. Whatever leaves these tables takes its bodies along.

drop view queues_openmessage;
drop view queues_segmentmessage;
drop view queues_opensegment;

create table queues_segmentbody (
    slot smallint not null,
    id bigint not null,
    bodies bytea[] not null
) partition by list (slot);
alter table queues_segmentbody alter column bodies set storage external;
do $$
declare
    slot integer;
begin
    for slot in 1..3 loop
        execute format('create table queues_segmentbody_%1$s partition of queues_segmentbody for values in (%1$s)
            with (autovacuum_enabled = false, toast.autovacuum_enabled = false)', slot);
        execute format('create index queues_segmentbody_%1$s_id on queues_segmentbody_%1$s (id)', slot);
    end loop;
end $$;

alter table queues_segment add column bodies_id bigint;
alter table queues_segment alter column bodies drop not null;
alter table queues_segment_kept alter column bodies set not null;

create function queues_bodies(slot smallint, bodies bytea[], bodies_id bigint) returns bytea[]
language sql stable as $$
-- The bodies of a segment: its own, or those that it shares.
    select coalesce(bodies, (select b.bodies from queues_segmentbody b where b.slot = $1 and b.id = bodies_id))
$$;

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
        from queues_segment s, unnest(queues_bodies(slot, bodies, bodies_id)) with ordinality as place (body, n)
        where s.first = any(found)
    ) as message left join (
        select t.first + n as id, true as settled
        from queues_segmentsettlement t, generate_series(low, high) as n where t.first = any(found)
    ) as done using (id)
    where settled is null;
    insert into queues_archivedsegment (first, count, queue_id, producer_id, published_at, finished_at, max_attempts,
        content, sizes, lows, highs, consumers, delivered, jobs)
    select s.first, count, queue_id, producer_id, published_at, now(), max_attempts, content,
        array(select length(body) from unnest(queues_bodies(slot, bodies, bodies_id)) with ordinality as place (body, n)
            order by n),
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

create view queues_segmentmessage as
-- The open messages of segments. With one state or the other, a condition on `state` leaves one of the two.
select s.first + n - 1 as id, queue_id, 0::smallint as state, max_attempts, null::integer as node_id, producer_id,
    published_at, content, body as payload, s.first as segment
from queues_segment s, unnest(bodies) with ordinality as place (body, n) where slot = 0 and node_id is null
union all
select s.first + n - 1, queue_id, 1::smallint, max_attempts, node_id, producer_id, published_at, content, body, s.first
from queues_segment s, unnest(queues_bodies(slot, bodies, bodies_id)) with ordinality as place (body, n)
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

create or replace function queues_rotate_segments(turn integer) returns boolean
language plpgsql set enable_seqscan = on as $$
-- Truncate the segments of a slot whose turn is over, their bodies, and what is settled of them; false: some are open, or
-- they are used.
declare
    tables constant text[] := array[format('queues_segment_%s', turn), format('queues_segmentsettlement_%s', turn),
        format('queues_segmentbody_%s', turn)];
begin
    -- Not by their rows: those that were moved may have left room that is not used again.
    if (select sum(pg_relation_size(name::regclass)) from unnest(tables) as name) = 0 then
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
