do $$
declare
    made text;
begin
    foreach made in array array['queues_make_archive_partitions(date, integer)', 'queues_drop_archive_partitions(date)',
        'queues_make_audit_partitions(date, integer)', 'queues_drop_audit_partitions(date)']
    loop
        execute format('alter function %s security invoker reset search_path', made);
        execute format('grant execute on function %s to public', made);
    end loop;
end $$;
