-- The size of the largest of the tables of segments that take turns, or of their bodies.
select max(greatest(
    pg_table_size(('queues_segment_' || slot)::regclass), pg_table_size(('queues_segmentbody_' || slot)::regclass)
)) from generate_series(1, %(slots)s) as slot
