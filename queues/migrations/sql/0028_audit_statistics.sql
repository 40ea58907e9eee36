-- Statistics of audit rows are taken when their number has doubled: rows are only added, and all are alike, so those of the
-- half hold for the whole. With a tenth, as by default, they cost more of the processor than the rows of a day.

do $$
declare
    partition regclass;
begin
    for partition in select inhrelid::regclass from pg_inherits where inhparent = 'queues_audit'::regclass loop
        execute format('alter table %s set (autovacuum_analyze_scale_factor = 1, autovacuum_analyze_threshold = 10000)', partition);
    end loop;
end $$;

create or replace function queues_make_audit_partitions(first_day date, days integer) returns integer
language plpgsql as $$
-- Make the partitions of these days (UTC) that do not exist; returns how many were made.
declare
    made integer := 0;
    day date;
    partition text;
    low timestamptz;
    high timestamptz;
    upkeep text := coalesce(current_setting('fivewire.audit_upkeep', true), '');
begin
    perform pg_advisory_xact_lock(hashtext('queues_audit'));
    for i in 0 .. days - 1 loop
        day := first_day + i;
        partition := 'queues_audit_' || to_char(day, 'YYYYMMDD');
        if to_regclass(partition) is null then
            low := day::timestamp at time zone 'UTC';
            high := (day + 1)::timestamp at time zone 'UTC';
            execute format(
                'create table %I (like queues_audit including defaults including constraints including storage)
                 with (autovacuum_analyze_scale_factor = 1, autovacuum_analyze_threshold = 10000)',
                partition);
            execute format('create unique index %I on %I (chain_id, seq)', partition || '_seq', partition);
            execute format('create trigger audit_is_not_emptied after truncate on %I
                for each statement execute function queues_audit_refuse()', partition);
            -- Rows that fell into the default partition would forbid the new one: move them.
            perform set_config('fivewire.audit_upkeep', 'on', true);
            execute format(
                'with moved as (delete from queues_audit_default where at >= %L and at < %L returning *)
                 insert into %I select * from moved', low, high, partition);
            perform set_config('fivewire.audit_upkeep', upkeep, true);
            execute format('alter table queues_audit attach partition %I for values from (%L) to (%L)', partition,
                low, high);
            made := made + 1;
        end if;
    end loop;
    return made;
end $$;
