-- Remove ready messages of a queue to make room for as many new ones: those of the lowest priority first, the oldest of
-- them first; `ids`: of these alone (null: of all), and none of `skip`. Returns how many. The highest byte of an id is
-- the priority, negated: from the last id down, one probe finds each priority that there is.
with recursive cause as (
    select 3 as outcome, 'drop' as event, null as by, false as named, false as whole
), class as (
    (select id >> 56 as p from queues_message
    where state = 0 and (queue_id, id) > (%(queue)s, -9223372036854775807)
        and (queue_id, id) <= (%(queue)s, 9223372036854775807)
    order by queue_id desc, id desc limit 1)
    union all
    select (select m.id >> 56 from queues_message m
        where m.state = 0 and (m.queue_id, m.id) > (%(queue)s, -9223372036854775807)
            and (m.queue_id, m.id) < (%(queue)s, class.p << 56)
        order by m.queue_id desc, m.id desc limit 1)
    from class where class.p is not null
), picked as (
    select array(select found.id from class, lateral (
        select m.id from queues_message m
        where m.state = 0 and (m.queue_id, m.id) >= (%(queue)s, class.p << 56)
            and (m.queue_id, m.id) <= (%(queue)s, (class.p << 56) | 72057594037927935)
            and coalesce(m.id = any(%(ids)s::bigint[]), true) and m.id <> all(%(skip)s::bigint[])
        order by m.queue_id, m.id limit %(count)s for update skip locked) as found
    where class.p is not null
    order by class.p desc, found.id limit %(count)s) as ids
),
\ir ../parts/remove.sql
select count(*) from gone
