-- Of these queues, those with ready messages, by their counts: for a node that heard of none.
select queue_id from (
    select queue_id, ready from queues_queuecount where queue_id = any(%(queues)s::int[])
    union all
    select queue_id, ready from queues_queuetally where queue_id = any(%(queues)s::int[])
) as counted group by queue_id having sum(ready) > 0
