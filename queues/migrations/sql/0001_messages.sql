-- Open messages: rows of their own, or in segments, of messages that were published together.

-- A statement takes one value and uses it and the next 4095 as ids: no block is held between statements, so
-- a later publish, on any node, gets a greater id.
create sequence queues_message_id as bigint start 4096 increment 4096;

-- At full pace 20 MB a second of this table are dead. With the pauses that autovacuum makes by default it took longer
-- to clean than it took to grow: 7 GB for 4,000 messages after ten minutes.
create table queues_message (
    id bigint primary key,
    state smallint not null constraint message_state_known check (state in (0, 1, 2, 3, 4)),
    attempts smallint not null default 0,
    max_attempts smallint,
    published_at timestamptz not null default statement_timestamp(),
    due_at timestamptz,
    expires_at timestamptz,
    dead_at timestamptz,
    origin_id bigint,
    tag bigint,
    key text,
    headers jsonb,
    error text,
    payload bytea not null,
    producer_id bigint,
    node_id integer,
    queue_id integer not null,
    content smallint,
    retry_interval integer,
    constraint message_delayed_has_due_time check ((due_at is not null and state = 2) or not state = 2),
    constraint message_leased_has_node check (
        (node_id is not null and state in (1, 4)) or (not state in (1, 4) and node_id is null))
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500000, autovacuum_vacuum_cost_delay = 0
);
-- Payloads are often compressed or small: trying to compress each costs more than it saves.
alter table queues_message alter column payload set storage external;
create index message_ready on queues_message (queue_id, id) where state = 0;
create index message_delayed on queues_message (queue_id, id) where state = 2;
create index message_dead on queues_message (queue_id, id) where state = 3;
create index message_due on queues_message (due_at) where state = 2;
create index message_expiry on queues_message (expires_at) where expires_at is not null;
create unique index message_key on queues_message (queue_id, key) where key is not null;
create index message_tag on queues_message (queue_id, tag) where tag is not null;
create index message_origin on queues_message (origin_id) where origin_id is not null;

-- Plain messages that were published together are one row, a segment: ready without a node, else leased by it. Slot 0
-- has those that wait or change. Those that are delivered at once are only inserted, into the tables of slots 1 to 3,
-- which take turns; a table in which nothing is open is truncated, so nothing of them is left to vacuum.
create table queues_segment (
    first bigint not null,
    queue_id integer not null,
    node_id integer,
    producer_id bigint,
    count integer not null,
    published_at timestamptz not null default now(),
    max_attempts smallint,
    content smallint,
    bodies bytea[],
    slot smallint not null default 0,
    -- Messages of a topic that are leased in several queues are stored once: queues_segmentbody.
    bodies_id bigint,
    -- The sizes of the bodies, for the archive: settlements need not read the bodies, which are out of line. One size
    -- is that of all.
    sizes integer[]
) partition by list (slot);
alter table queues_segment alter column bodies set storage external, alter column sizes set storage external;
create table queues_segment_kept partition of queues_segment (
    constraint queues_segment_pkey primary key (first), bodies not null, constraint kept check (slot = 0)
) for values in (0) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
create index queues_segment_queue on queues_segment_kept (queue_id, first);
create index queues_segment_ready on queues_segment_kept (queue_id, first) where node_id is null;
create index queues_segment_node on queues_segment_kept (node_id) where node_id is not null;

-- Bodies that segments of the same slot share. Whatever leaves that slot takes its bodies along.
create table queues_segmentbody (
    slot smallint not null,
    id bigint not null,
    bodies bytea[] not null,
    sizes integer[]
) partition by list (slot);
alter table queues_segmentbody alter column bodies set storage external, alter column sizes set storage external;

-- What is settled of segments that have open messages still: the places low … high of each.
create table queues_segmentsettlement (
    first bigint not null,
    low integer not null,
    high integer not null,
    consumer_id bigint,
    delivered_at timestamptz,
    job boolean,
    kept boolean not null,
    slot smallint not null default 0
) partition by list (slot);
create table queues_segmentsettlement_kept partition of queues_segmentsettlement (constraint kept check (slot = 0))
for values in (0) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
create index queues_segmentsettlement_first on queues_segmentsettlement_kept (first);

do $$
begin
    for slot in 1..3 loop
        execute format('create table queues_segment_%1$s partition of queues_segment for values in (%1$s)
            with (autovacuum_enabled = false, toast.autovacuum_enabled = false)', slot);
        execute format('create index queues_segment_%1$s_first on queues_segment_%1$s (first)', slot);
        execute format('create index queues_segment_%1$s_queue on queues_segment_%1$s (queue_id, first)', slot);
        execute format('create table queues_segmentbody_%1$s partition of queues_segmentbody for values in (%1$s)
            with (autovacuum_enabled = false, toast.autovacuum_enabled = false)', slot);
        execute format('create index queues_segmentbody_%1$s_id on queues_segmentbody_%1$s (id)', slot);
        execute format('create table queues_segmentsettlement_%1$s partition of queues_segmentsettlement
            for values in (%1$s) with (autovacuum_enabled = false)', slot);
        execute format(
            'create index queues_segmentsettlement_%1$s_first on queues_segmentsettlement_%1$s (first)', slot);
    end loop;
end $$;

create function queues_bodies(slot smallint, bodies bytea[], bodies_id bigint) returns bytea[]
language sql stable as $$
-- The bodies of a segment: its own, or those that it shares.
    select coalesce(bodies, (select b.bodies from queues_segmentbody b where b.slot = $1 and b.id = bodies_id))
$$;

create view queues_opensegment as
-- Segments with open messages: in the tables that take turns finished ones stay until these are truncated. Most are
-- settled by one range.
select first, queue_id, node_id, producer_id, count, published_at, max_attempts, content, bodies, slot, bodies_id
from queues_segment where slot = 0
union all
select first, queue_id, node_id, producer_id, count, published_at, max_attempts, content, bodies, slot, bodies_id
from queues_segment s where slot > 0 and not exists (
    select from queues_segmentsettlement t where t.slot = s.slot and t.first = s.first and t.high - t.low = s.count - 1
) and count > coalesce((
    select sum(high - low + 1) from queues_segmentsettlement t where t.slot = s.slot and t.first = s.first), 0);

-- Messages of segments are read by index: `segment` is the first id of a message's segment, or its own id if it has a
-- row.
create view queues_segmentmessage as
-- The open messages of segments. With one state or the other, a condition on `state` leaves one of the two.
select s.first + n - 1 as id, queue_id, 0::smallint as state, max_attempts, null::integer as node_id, producer_id,
    published_at, content, body as payload, s.first as segment
from queues_segment s, unnest(bodies) with ordinality as place (body, n) where slot = 0 and node_id is null
union all
select s.first + n - 1, queue_id, 1::smallint, max_attempts, node_id, producer_id, published_at, content, body, s.first
from queues_segment s, unnest(queues_bodies(slot, bodies, bodies_id)) with ordinality as place (body, n)
where node_id is not null and not exists (
    select from queues_segmentsettlement t
    where t.slot = s.slot and t.first = s.first and n - 1 between t.low and t.high);

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

create function queues_change_openmessage() returns trigger
language plpgsql as $$
-- The view takes changes of messages that have rows of their own.
begin
    if tg_op <> 'INSERT' then
        delete from queues_message where id = old.id;
    end if;
    if tg_op = 'DELETE' then
        return old;
    end if;
    insert into queues_message (id, queue_id, state, attempts, max_attempts, node_id, producer_id, published_at, due_at,
        expires_at, dead_at, origin_id, tag, content, retry_interval, key, headers, error, payload)
    values (new.id, new.queue_id, new.state, new.attempts, new.max_attempts, new.node_id, new.producer_id,
        new.published_at, new.due_at, new.expires_at, new.dead_at, new.origin_id, new.tag, new.content,
        new.retry_interval, new.key, new.headers, new.error, new.payload);
    return new;
end $$;
create trigger change_openmessage instead of insert or update or delete on queues_openmessage
    for each row execute function queues_change_openmessage();

create function queues_segments_of(wanted bigint[]) returns bigint[]
language sql stable as $$
-- The values of `segment` of the messages with these ids: the ids, and the first ids of the segments that have them.
    select wanted || array(
        select s.first from unnest(wanted) as given (id), lateral (
            select first, count from queues_segment where first <= id order by first desc limit 1
        ) as s where id < s.first + s.count
    )
$$;

create function queues_last_segment(queue integer, wanted smallint, after bigint, messages bigint) returns bigint
language plpgsql stable set enable_sort = off as $$
-- The greatest value of `segment` of the next so many messages beyond the id `after`, of a queue (null: of all) in
-- one state (null: in any), or a greater one. Reads the segments up to there, some at a time, and no bodies. Without
-- sorting, whatever the statistics say: they are read in the order of an index, and no further.
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

create function queues_unpack_segments(wanted bigint[], waiting boolean default true) returns bigint[]
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
        found := array(
            select first from queues_segment where first = any(wanted) order by first for update skip locked);
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

create function queues_unpack_ready(queue integer, messages bigint) returns bigint[]
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
