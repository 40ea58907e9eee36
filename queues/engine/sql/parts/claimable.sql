-- The beginning of a claim, behind `allowed`: the first ready segment of the queue above `low`, and the ready rows
-- before it, in order of id. Positions are compared as rows, so that only the index of ready messages can give the
-- order, with any statistics.
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
