-- Back to one table: the messages of the segments become rows.
set local lock_timeout = '10s';
lock table queues_archivedmessage, queues_archivedsegment in access exclusive mode;
insert into queues_archivedmessage (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at, delivered_at,
    finished_at, size, max_attempts, content, job, xid)
select s.first + slot, s.queue_id, s.outcome, 0, s.producer_id, r.consumer_id, s.published_at, r.delivered_at,
    s.finished_at, s.sizes[slot + 1], s.max_attempts, s.content, r.job, s.xid
from queues_archivedsegment s,
    unnest(s.lows, s.highs, s.consumers, s.delivered, s.jobs) as r (low, high, consumer_id, delivered_at, job),
    generate_series(r.low, r.high) as slot;
drop view queues_archive;
drop function queues_delete_archived();
drop function queues_insert_archived();
drop function queues_archived_at(bigint);
drop table queues_archivedsegment;
alter table queues_archivedmessage rename to queues_archive;

create or replace function queues_make_archive_partitions(first_day date, days integer) returns integer
language plpgsql set lock_timeout = '200ms' as $$
-- Make the partitions of these days (UTC) that do not exist; returns how many were made.
declare
    made integer := 0;
    day date;
    partition text;
begin
    perform pg_advisory_xact_lock(hashtext('queues_archive'));
    for i in 0 .. days - 1 loop
        day := first_day + i;
        partition := 'queues_archive_' || to_char(day, 'YYYYMMDD');
        if to_regclass(partition) is null then
            -- Rows that fell into the default partition would forbid the new one: move them.
            execute format('create table %I (like queues_archive including defaults including storage)', partition);
            execute format(
                'with moved as (delete from queues_archive_default where finished_at >= %1$L and finished_at < %2$L
                 returning *) insert into %3$I select * from moved',
                day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC', partition);
            execute format('alter table queues_archive attach partition %I for values from (%L) to (%L)', partition,
                day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC');
            made := made + 1;
        end if;
    end loop;
    return made;
end $$;

create or replace function queues_drop_archive_partitions(before_day date) returns integer
language plpgsql set lock_timeout = '200ms' as $$
-- Drop the partitions of all days before this one; returns how many there were.
declare
    dropped integer := 0;
    partition text;
begin
    perform pg_advisory_xact_lock(hashtext('queues_archive'));
    for partition in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'queues_archive'::regclass and c.relname ~ '^queues_archive_\d{8}$'
            and right(c.relname, 8) < to_char(before_day, 'YYYYMMDD')
    loop
        execute format('drop table %I', partition);
        dropped := dropped + 1;
    end loop;
    return dropped;
end $$;
