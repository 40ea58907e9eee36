-- The partitions of the archive and of the audit chains are made and dropped with the rights of the tables' owner, so
-- the role of listeners, site and workers needs none to change tables: it is granted these functions alone. Names in
-- them are looked up where the tables are, whatever the caller's path is.
do $$
declare
    made text;
begin
    foreach made in array array['queues_make_archive_partitions(date, integer)', 'queues_drop_archive_partitions(date)',
        'queues_make_audit_partitions(date, integer)', 'queues_drop_audit_partitions(date)']
    loop
        execute format('alter function %s security definer set search_path = %I, pg_temp', made, current_schema());
        execute format('revoke execute on function %s from public', made);
    end loop;
end $$;
