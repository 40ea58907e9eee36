-- Keep these mailboxes for their connections until the transaction ends, in order, so that no two transactions wait for
-- each other. The statements that follow ask again and get their answers at once. One row a mailbox that is still held.
select queue_id from (
    select * from unnest(%(mailboxes)s::int[], %(connections)s::bigint[]) as m (queue_id, connection) order by queue_id
) as ordered
where queues_holds_mailbox(queue_id, connection)
