-- As claim.sql, for a queue that no other node serves and that has no limit: rows need not be locked before they are
-- updated, which makes it cheaper. Should another claim come in between after all, the update sees
-- that a row is no longer ready and leaves it; written so that no index is tempted to look for it. As there, the first
-- row tells of the claim itself.
with allowed as (
    select %(limit)s::bigint as count
), packed as materialized (
    select first from queues_segment
    where slot = 0 and node_id is null and (queue_id, first) > (%(queue)s, %(low)s)
        and (queue_id, first) <= (%(queue)s, 9223372036854775807)
    order by queue_id, first limit 1
), picked as materialized (
    select ctid from queues_message
    where (select queues_may_lease(%(node)s)) and state = 0
        and (queue_id, id) > (%(queue)s, %(low)s)
        and (queue_id, id) <= (%(queue)s, coalesce((select first - 1 from packed), 9223372036854775807))
        and (expires_at is null or expires_at > now())
    order by queue_id, id
    limit %(limit)s
), leased as (
    update queues_message set state = 1, node_id = %(node)s
    where ctid = any(array(select ctid from picked)) and state + 0 = 0 and queue_id + 0 = %(queue)s
\ir parts/claimed.sql
