-- The archive of finished messages, by day: messages, and segments of messages that were published together.

create table queues_archivedmessage (
    id bigint not null,
    queue_id integer not null,
    outcome smallint not null,
    attempts smallint not null,
    producer_id bigint,
    consumer_id bigint,
    published_at timestamptz not null,
    delivered_at timestamptz,
    finished_at timestamptz not null,
    size integer not null,
    key text,
    headers jsonb,
    payload bytea,
    due_at timestamptz,
    max_attempts smallint,
    retry_interval integer,
    content smallint,
    job boolean,
    result bytea,
    -- The transaction that wrote the row: a reader finds new rows by that alone. The engine's statements give the
    -- number themselves, once each instead of once a row.
    xid bigint not null default pg_current_xact_id()::text::bigint
) partition by range (finished_at);
alter table queues_archivedmessage alter column payload set storage external;
create index queues_archive_finished on queues_archivedmessage using brin (finished_at);
create index queues_archive_id on queues_archivedmessage using brin (id);
create index queues_archive_xid on queues_archivedmessage using brin (xid) with (pages_per_range = 32);
create index archive_job on queues_archivedmessage (queue_id, id) where job;
-- Catches what no day's partition does, so that an acknowledgement never fails for want of one.
create table queues_archive_default partition of queues_archivedmessage default;

-- `count` plain messages with the ids from `first` on; slot n is the message first + n, its payload had sizes[n + 1]
-- bytes. Those that are archived by this row are the slots lows[k] to highs[k], each range acknowledged by one
-- consumer, as jobs or not, and delivered at one time. No segment has more than 4096 slots.
create table queues_archivedsegment (
    first bigint not null,
    count integer not null,
    queue_id integer not null,
    outcome smallint not null default 0,
    producer_id bigint,
    published_at timestamptz not null,
    finished_at timestamptz not null,
    xid bigint not null default pg_current_xact_id()::text::bigint,
    max_attempts smallint,
    content smallint,
    sizes integer[] not null,
    lows integer[] not null,
    highs integer[] not null,
    consumers bigint[] not null,
    delivered timestamptz[] not null,
    jobs boolean[] not null
) partition by range (finished_at);
create index queues_archivedsegment_finished on queues_archivedsegment using brin (finished_at);
create index queues_archivedsegment_first on queues_archivedsegment using brin (first);
create index queues_archivedsegment_xid on queues_archivedsegment using brin (xid) with (pages_per_range = 32);
create table queues_archivedsegment_default partition of queues_archivedsegment default;

create view queues_archive as
    select id, queue_id, outcome, attempts, producer_id, consumer_id, published_at, delivered_at, finished_at, size,
        key, headers, payload, due_at, max_attempts, retry_interval, content, job, result, xid
    from queues_archivedmessage
    union all
    -- Conditions on the queue, the outcome, the producer, the content, times and the transaction reach the segments'
    -- columns. Those on what a segment's messages never have leave them all out. One on the id does not: see
    -- queues_archived_at.
    select s.first + slot, s.queue_id, s.outcome, 0::smallint, s.producer_id, r.consumer_id, s.published_at,
        r.delivered_at, s.finished_at, s.sizes[slot + 1], null::text, null::jsonb, null::bytea, null::timestamptz,
        s.max_attempts, null::integer, s.content, r.job, null::bytea, s.xid
    from queues_archivedsegment s,
        unnest(s.lows, s.highs, s.consumers, s.delivered, s.jobs) as r (low, high, consumer_id, delivered_at, job),
        generate_series(r.low, r.high) as slot;
alter view queues_archive alter column xid set default pg_current_xact_id()::text::bigint;

create function queues_archived_at(message bigint) returns setof timestamptz
language sql stable as $$
-- When rows and segments were finished that may have this message: a condition on `finished_at` leaves all others out.
    select finished_at from queues_archivedmessage where id = message
    union all
    select finished_at from queues_archivedsegment
    where first > greatest(message, -9223372036854770000) - 4096 and first <= message
$$;

create function queues_insert_archived() returns trigger
language plpgsql as $$
begin
    insert into queues_archivedmessage (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at,
        delivered_at, finished_at, size, key, headers, payload, due_at, max_attempts, retry_interval, content, job,
        result, xid)
    values (new.id, new.queue_id, new.outcome, new.attempts, new.producer_id, new.consumer_id, new.published_at,
        new.delivered_at, new.finished_at, new.size, new.key, new.headers, new.payload, new.due_at, new.max_attempts,
        new.retry_interval, new.content, new.job, new.result, new.xid);
    return new;
end $$;
create trigger archive_inserts instead of insert on queues_archive
    for each row execute function queues_insert_archived();

create function queues_delete_archived() returns trigger
language plpgsql as $$
-- Delete a message's row, or take it out of its range of a segment; a segment of which nothing is left goes, too.
begin
    delete from queues_archivedmessage
    where id = old.id and finished_at = old.finished_at and xid = old.xid and queue_id = old.queue_id
        and outcome = old.outcome and attempts = old.attempts;
    if found then
        return old;
    end if;
    update queues_archivedsegment s set (lows, highs, consumers, delivered, jobs) = (
        select coalesce(array_agg(piece.low order by piece.low), '{}'),
            coalesce(array_agg(piece.high order by piece.low), '{}'),
            coalesce(array_agg(r.consumer_id order by piece.low), '{}'),
            coalesce(array_agg(r.delivered_at order by piece.low), '{}'),
            coalesce(array_agg(r.job order by piece.low), '{}')
        from unnest(s.lows, s.highs, s.consumers, s.delivered, s.jobs) as r (low, high, consumer_id, delivered_at, job),
            lateral (values
                (r.low, least(r.high, (old.id - s.first - 1)::integer)),
                (greatest(r.low, (old.id - s.first + 1)::integer), r.high)
            ) as piece (low, high)
        where piece.low <= piece.high)
    where first > greatest(old.id, -9223372036854770000) - 4096 and first <= old.id
        and finished_at = old.finished_at and xid = old.xid and queue_id = old.queue_id and outcome = old.outcome
        and exists (
            select from unnest(s.lows, s.highs) as r (low, high) where old.id - s.first between r.low and r.high);
    if not found then
        return null;
    end if;
    delete from queues_archivedsegment
    where first > greatest(old.id, -9223372036854770000) - 4096 and first <= old.id
        and finished_at = old.finished_at and xid = old.xid and lows = '{}';
    return old;
end $$;
create trigger archive_deletes instead of delete on queues_archive
    for each row execute function queues_delete_archived();

-- Statistics of the archive are taken when its number of rows has doubled: rows are only added, and those of the half
-- hold for the whole. No statistics are taken of a segment's arrays, which no condition names: to read and count the
-- elements of thirty thousand arrays was most of autovacuum's work.
create function queues_rare_statistics(partition regclass) returns void
language plpgsql as $$
-- Make a table's statistics rare, and leave out its arrays.
declare
    arrays text;
begin
    execute format(
        'alter table %s set (autovacuum_analyze_scale_factor = 1, autovacuum_analyze_threshold = 10000)', partition);
    select string_agg(format('alter column %I set statistics 0', attname), ', ') into arrays
    from pg_attribute join pg_type t on t.oid = atttypid
    where attrelid = partition and attnum > 0 and typcategory = 'A';
    if arrays is not null then
        execute format('alter table %s %s', partition, arrays);
    end if;
end $$;

-- Making or dropping a partition of the archive takes a lock for which it may have to wait until a backup or another
-- long query ends; meanwhile every acknowledgement would wait behind it. So it gives up, and tries again later.
create function queues_make_archive_partitions(first_day date, days integer) returns integer
language plpgsql set lock_timeout = '200ms' as $$
-- Make the partitions of these days (UTC) that do not exist, of both tables; returns for how many days some were made.
declare
    made integer := 0;
    missed boolean;
    day date;
    parent text;
    prefix text;
    partition text;
begin
    perform pg_advisory_xact_lock(hashtext('queues_archive'));
    for i in 0 .. days - 1 loop
        day := first_day + i;
        missed := false;
        for parent, prefix in values
            ('queues_archivedmessage', 'queues_archive'), ('queues_archivedsegment', 'queues_archivedsegment')
        loop
            partition := prefix || '_' || to_char(day, 'YYYYMMDD');
            continue when to_regclass(partition) is not null;
            -- Rows that fell into the default partition would forbid the new one: move them.
            execute format('create table %I (like %I including defaults including storage)', partition, parent);
            perform queues_rare_statistics(partition::regclass);
            execute format(
                'with moved as (delete from %4$I where finished_at >= %1$L and finished_at < %2$L
                 returning *) insert into %3$I select * from moved',
                day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC', partition,
                prefix || '_default');
            execute format('alter table %I attach partition %I for values from (%L) to (%L)', parent, partition,
                day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC');
            missed := true;
        end loop;
        made := made + missed::integer;
    end loop;
    return made;
end $$;

create function queues_drop_archive_partitions(before_day date) returns integer
language plpgsql set lock_timeout = '200ms' as $$
-- Drop the partitions of all days before this one, of both tables; returns how many days there were.
declare
    dropped text[] := '{}';
    partition text;
begin
    perform pg_advisory_xact_lock(hashtext('queues_archive'));
    for partition in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent in ('queues_archivedmessage'::regclass, 'queues_archivedsegment'::regclass)
            and c.relname ~ '_\d{8}$' and right(c.relname, 8) < to_char(before_day, 'YYYYMMDD')
        order by i.inhparent, c.relname
    loop
        execute format('drop table %I', partition);
        dropped := dropped || right(partition, 8);
    end loop;
    return (select count(distinct day) from unnest(dropped) as day);
end $$;

select queues_rare_statistics('queues_archive_default'), queues_rare_statistics('queues_archivedsegment_default');
select queues_make_archive_partitions((now() at time zone 'UTC')::date, 7);
