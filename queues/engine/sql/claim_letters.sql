-- Lease the oldest ready messages of a mailbox to its connection, looking above `low` only: at most `limit`, and no more
-- once they have `room_bytes`. In order of id.
-- Before the messages comes one row with id -1: the transactions that were under way (pg_current_snapshot) as text and
-- whether there may be more than were taken.
with picked as materialized (
    select ctid, id, length(payload) as size from queues_message
    where (select queues_may_lease(%(node)s) and queues_holds_mailbox(%(queue)s, %(connection)s)) and state = 0
        and (queue_id, id) > (%(queue)s, %(low)s) and (queue_id, id) <= (%(queue)s, 9223372036854775807)
        and (expires_at is null or expires_at > now())
    order by queue_id, id
    limit %(limit)s
), fitting as materialized (
    select ctid from (select ctid, sum(size) over (order by id) - size as before from picked) as p
    where before < %(room_bytes)s
), leased as (
    update queues_message set state = 1, node_id = %(node)s, tag = %(connection)s
    where ctid = any(array(select ctid from fitting)) and state + 0 = 0 and queue_id + 0 = %(queue)s
    returning id, payload, key, attempts, content, coalesce(origin_id, id) as first_id, headers ->> 'from' as sender,
        extract(epoch from published_at)::float8 as published
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select %(queue)s, -count(*), count(*) from leased having count(*) > 0
)
select -1::bigint as id, null::bytea as payload, pg_current_snapshot()::text as key, 0::smallint as attempts,
    case when (select count(*) from picked) = %(limit)s or (select count(*) from fitting) < (select count(*) from picked)
        then 1 else 0 end::smallint as content,
    null::bigint as first_id, null::text as sender, null::float8 as published
union all
(select * from leased order by id)
