-- As unseen.sql, for so many queues that to read all counts once costs less than to look for each.
select queue_id from (
    select queue_id, ready from queues_queuecount where ready <> 0
    union all
    select queue_id, ready from queues_queuetally where ready <> 0
) as counted join unnest(%(queues)s::int[]) as asked (queue_id) using (queue_id)
group by queue_id having sum(ready) > 0
