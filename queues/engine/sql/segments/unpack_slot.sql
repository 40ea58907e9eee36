-- Give the open messages of a slot rows of their own, of at most so many segments, these `ids` (null: any) without
-- those in `skip`, but for segments that others hold locked. With the one that reaches so many `messages` it is enough:
-- settlements of these segments wait. Returns how many segments these were.
select cardinality(queues_unpack_segments(array(
    select first from (
        select first, sum(count) over (order by first) - count as before from queues_opensegment
        where slot = %(slot)s and coalesce(first = any(%(ids)s::bigint[]), true) and first <> all(%(skip)s::bigint[])
    ) as open
    where before < %(messages)s
    limit %(limit)s
), false))
