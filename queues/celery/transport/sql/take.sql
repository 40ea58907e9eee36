-- Take the oldest messages out of a temporary queue for a consumer that does not acknowledge. In order of id. Should
-- PostgreSQL crash before this is on disk they are there again: no caller waits for the disk. If the oldest are in a
-- ready segment it takes nothing, and gives one row without an id: they are to be unpacked first (unpack_oldest.sql).
with packed as materialized (
    select (select first from queues_segment
        where slot = 0 and node_id is null and (queue_id, first) > (%(queue)s, 0)
            and (queue_id, first) <= (%(queue)s, 9223372036854775807)
        order by queue_id, first limit 1) as first
), picked as materialized (
    select id from queues_message
    where (select set_config('synchronous_commit', 'off', true)) = 'off' and state = 0
        and (queue_id, id) > (%(queue)s, -9223372036854775807)
        and (queue_id, id) <= (%(queue)s, coalesce((select first from packed), 9223372036854775807))
        and (expires_at is null or expires_at > now())
    order by queue_id, id
    limit %(limit)s
    for update skip locked
), gone as (
    delete from queues_message where id = any(array(select id from picked))
    returning id, payload, attempts, headers, content
), tallied as (
    insert into queues_queuetally (queue_id, ready, settled, completed)
    select %(queue)s, -count(*), count(*), count(*) from gone having count(*) > 0
)
select id, payload, attempts, headers, content from gone
union all
select null, null, null, null, null from packed where first is not null and not exists (select from gone)
order by id
