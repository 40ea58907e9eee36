-- Lease the oldest ready messages of mailboxes to their connections, of each looking above its `low` only: at most so many
-- (`most`), and no more once they have so many bytes (`byte_rooms`). In order of mailbox and id.
-- Before the messages of a mailbox comes one row with id -1: the transactions that were under way (pg_current_snapshot) as
-- text and whether there may be more than were taken.
with box as materialized (
    select b.*, queues_holds_mailbox(queue_id, connection) and queues_may_lease(%(node)s) as held from unnest(
        %(queues)s::int[], %(connections)s::bigint[], %(lows)s::bigint[], %(most)s::int[], %(byte_rooms)s::bigint[]
    ) as b (queue_id, connection, low, most, room)
), picked as materialized (
    select queue_id, place, sum(size) over (partition by queue_id order by id) - size < room as fits
    from box, lateral (
        select ctid as place, id, length(payload) as size from queues_message m
        where state = 0 and (m.queue_id, m.id) > (box.queue_id, box.low) and (m.queue_id, m.id) <= (box.queue_id, 9223372036854775807)
            and (expires_at is null or expires_at > now())
        order by m.queue_id, m.id
        limit case when held then most else 0 end
    ) as ready
), leased as (
    update queues_message m set state = 1, node_id = %(node)s, tag = connection from box
    where ctid = any(array(select place from picked where fits)) and state + 0 = 0 and m.queue_id + 0 = box.queue_id
    returning m.queue_id, id, payload, key, attempts, content, coalesce(origin_id, id) as first_id,
        headers ->> 'from' as sender, extract(epoch from published_at)::float8 as published
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased)
    select queue_id, -count(*), count(*) from leased group by queue_id
)
select queue_id, -1::bigint as id, null::bytea as payload, pg_current_snapshot()::text as key, 0::smallint as attempts,
    (count(place) = most or not coalesce(bool_and(fits), true))::int::smallint as content,
    null::bigint as first_id, null::text as sender, null::float8 as published
from box left join picked using (queue_id) group by queue_id, most
union all
select * from leased
order by queue_id, id
