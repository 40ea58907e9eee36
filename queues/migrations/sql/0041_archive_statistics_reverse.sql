do $$
declare
    partition regclass;
    arrays text;
begin
    for partition in select inhrelid::regclass from pg_inherits
        where inhparent in ('queues_archivedmessage'::regclass, 'queues_archivedsegment'::regclass)
    loop
        execute format('alter table %s reset (autovacuum_analyze_scale_factor, autovacuum_analyze_threshold)', partition);
        select string_agg(format('alter column %I set statistics -1', attname), ', ') into arrays
        from pg_attribute join pg_type t on t.oid = atttypid
        where attrelid = partition and attnum > 0 and typcategory = 'A';
        if arrays is not null then
            execute format('alter table %s %s', partition, arrays);
        end if;
    end loop;
end $$;

create or replace function queues_make_archive_partitions(first_day date, days integer) returns integer
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

drop function queues_rare_statistics(regclass);
