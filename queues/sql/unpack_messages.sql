-- Give each message of the ready segments that have these messages a row of its own, but for segments that nodes are
-- about to change; returns the first ids of the segments.
select queues_unpack_segments(array(
    select first from queues_segment
    where first = any((select queues_segments_of(%(ids)s::bigint[]))::bigint[]) and slot = 0 and node_id is null
), false)
