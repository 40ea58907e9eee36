-- Give each open message of these segments a row of its own; without `waiting` segments that others have locked are
-- left.
select queues_unpack_segments(%(firsts)s::bigint[], %(waiting)s)
