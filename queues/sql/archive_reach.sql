-- The time since when the newest segments have `most` messages: of a queue, finished since `low` and before `high`; a
-- null parameter fits all. Null when there are fewer. As far back has one to look for so many finished messages, of any
-- kind.
with newest as (
    select finished_at, (select sum(high - low + 1) from unnest(lows, highs) as r (low, high)) as messages
    from (
        select finished_at, lows, highs from queues_archivedsegment
        where (%(queue)s::int is null or queue_id = %(queue)s::int)
            and (%(low)s::timestamptz is null or finished_at >= %(low)s::timestamptz)
            and (%(high)s::timestamptz is null or finished_at < %(high)s::timestamptz)
        order by finished_at desc limit %(most)s
    ) as s
), counted as (
    select finished_at, sum(messages) over (order by finished_at desc) as messages from newest
)
select max(finished_at) from counted where messages >= %(most)s
