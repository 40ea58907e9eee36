-- The newest dead letters of some queues, at most so many of each, by queue and the beginning of their reason: queue,
-- reason, how many, when the first and the last one came. With `moved` those that stand in dead-letter queues: their
-- header "dead-letter" has the reason, and the time as a text, which might be a producer's own.
select queue_id, reason, count(*), min(at), max(at), min(told), max(told)
from unnest(%(queues)s::int[]) as wanted, lateral (
    (select id, queue_id, left(error, %(length)s) as reason, dead_at as at, null as told
    from queues_message where queue_id = wanted and state = 3 and not %(moved)s
    order by queue_id desc, id desc limit %(letters)s)
    union all
    (select id, queue_id, left(letter ->> 'error', %(length)s), null, letter ->> 'at'
    from (
        select id, queue_id, headers -> 'dead-letter' as letter
        from queues_message where queue_id = wanted and state = 0 and %(moved)s
        order by queue_id desc, id desc limit %(letters)s
    ) as newest where jsonb_typeof(letter) = 'object')
) as letters
group by queue_id, reason
