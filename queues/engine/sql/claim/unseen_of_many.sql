-- All queues with ready messages, by their counts: where a node serves so many that to read all costs least.
select queue_id from (
    select queue_id, ready from queues_queuecount where ready <> 0
    union all
    select queue_id, ready from queues_queuetally where ready <> 0
) as counted group by queue_id having sum(ready) > 0
