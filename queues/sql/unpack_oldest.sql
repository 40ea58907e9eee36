-- Give the messages of a queue's oldest ready segments rows of their own, until that are so many: of segments that have
-- messages up to the id `high`. Segments that nodes are about to change are waited for. Returns how many segments there were.
select cardinality(queues_unpack_segments(array(
    select first from queues_segment
    where node_id is null and first <= %(high)s and (queue_id, first) > (%(queue)s, 0)
        and (queue_id, first) <= (%(queue)s, (select queues_last_segment(%(queue)s, 0::smallint, 0, %(messages)s)))
)))
