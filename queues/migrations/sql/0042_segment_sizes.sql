-- The sizes of a segment's bodies stand beside them, for the archive: settlements need not read the bodies, which are out of
-- line. One size is that of all. Segments without sizes are of nodes of an earlier version.
set local lock_timeout = '10s';
alter table queues_segment add column sizes integer[];
alter table queues_segmentbody add column sizes integer[];
do $$
declare
    name regclass;
begin
    for name in select relid from pg_partition_tree('queues_segment') union all select relid from pg_partition_tree('queues_segmentbody') loop
        execute format('alter table %s alter column sizes set storage external', name);
    end loop;
end $$;
