-- The same for the segments that have messages with these ids; a segment has at most 4096.
select queues_unpack_segments(array(
    select distinct found.first
    from unnest(%(ids)s::bigint[]) as given (id), lateral (
        select first, count from queues_segment
        where first > greatest(id, -9223372036854771712) - 4096 and first <= id order by first desc limit 1
    ) as found
    where id < found.first + found.count
))
