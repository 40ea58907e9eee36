-- Lease the oldest dead letters of a queue to this node, for a consumer that reads them. In order of id, behind a row
-- that tells of the claim, as in claim.sql.
with picked as materialized (
    select ctid from queues_message
    where (select queues_may_lease(%(node)s)) and state = 3
        and (queue_id, id) > (%(queue)s, -9223372036854775807) and (queue_id, id) <= (%(queue)s, 9223372036854775807)
    order by queue_id, id limit %(limit)s
    for update skip locked
), leased as (
    update queues_message set state = 4, node_id = %(node)s
    where ctid = any(array(select ctid from picked))
    returning id, payload, attempts,
        case when origin_id is not null then jsonb_build_object('origin', origin_id)::text end as detail
)
select -1 as id, convert_to(pg_current_snapshot()::text, 'UTF8') as payload,
    case when (select count(*) from picked) < %(limit)s then 0 else 1 end as attempts, null::text as detail,
        null::bytea[] as bodies
union all
(select *, null from leased order by id)
