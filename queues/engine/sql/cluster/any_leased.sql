-- Whether any message is leased, or any dead letter being read, by the counts: both were made in the transactions that
-- moved the messages.
select exists (
    select from (
        select queue_id, leased from queues_queuecount where leased <> 0
        union all
        select queue_id, leased from queues_queuetally where leased <> 0
    ) as counted group by queue_id having sum(leased) <> 0
) or coalesce((select sum(dead) from queues_queuecount), 0) + coalesce((select sum(dead) from queues_queuetally), 0)
    <> (select count(*) from queues_message where state = 3 and (queue_id, id) > (-2147483648, -9223372036854775807))
