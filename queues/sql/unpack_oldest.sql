-- Give the messages of a queue's oldest ready segments rows of their own, until that are so many: of segments that have
-- messages up to the id `high`. Segments that others are unpacking or changing are waited for. Returns how many there
-- were.
with oldest as materialized (
    select array(
        select first from queues_segment
        where slot = 0 and node_id is null and first <= %(high)s and (queue_id, first) > (%(queue)s, 0)
            and (queue_id, first) <= (%(queue)s, (select queues_last_segment(%(queue)s, 0::smallint, 0, %(messages)s)))
    ) as firsts
)
select cardinality(firsts) from oldest where queues_unpack_segments(firsts) is not null
