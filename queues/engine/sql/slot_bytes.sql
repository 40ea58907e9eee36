-- The size of the largest of the tables of segments that take turns.
select max(pg_table_size(('queues_segment_' || slot)::regclass)) from generate_series(1, %(slots)s) as slot
