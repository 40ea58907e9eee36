-- The same for the segments that have messages with these ids; a segment has at most 4096.
select queues_unpack_segments(array(
    select distinct s.first from queues_segment s join unnest(%(ids)s::bigint[]) as given (id)
        on s.first > id - 4096 and s.first <= id and id < s.first + s.count
))
