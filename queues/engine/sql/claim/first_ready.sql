-- The id of the oldest ready message of a queue above `low`; of a segment the first one's.
select least((
    select id from queues_message
    where state = 0 and (queue_id, id) > (%(queue)s, %(low)s) and (queue_id, id) <= (%(queue)s, 9223372036854775807)
        and (expires_at is null or expires_at > now())
    order by queue_id, id
    limit 1
), (
    select first from queues_segment
    where slot = 0 and node_id is null and (queue_id, first) > (%(queue)s, %(low)s)
        and (queue_id, first) <= (%(queue)s, 9223372036854775807)
    order by queue_id, first
    limit 1
))
