-- Connections of this node have ended: letters that they did not acknowledge are ready again, in their places. Those that
-- were taken over meanwhile are left alone. One row a mailbox: its queue.
with ended as materialized (
    select queue_id from (
        select * from unnest(%(mailboxes)s::int[], %(connections)s::bigint[]) as m (queue_id, connection) order by queue_id
    ) as ordered
    where queues_holds_mailbox(queue_id, connection)
), requeued as materialized (
    select queue_id, queues_requeue_letters(queue_id) from ended
), emptied as (
    update queues_mailbox set node_id = null, connection = null, left_at = clock_timestamp()
    where queue_id = any(array(select queue_id from requeued)) returning queue_id
), dropped as (
    delete from queues_interest where node_id = %(node)s and queue_id = any(array(select queue_id from requeued))
    returning queue_id
), told as materialized (
    select queues_notify_interest('disinterest', array_agg(queue_id), %(node)s) from dropped
)
select queue_id from emptied, (select count(*) from told) as once
