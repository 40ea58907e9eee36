-- The dead letters that queues have ever moved to the dead-letter queues that they have now, and those of the last
-- minute. One row a queue that has one, of these queues; null asks for all.
select q.id, 'queue:' || q.name, 'queue:' || target.name, coalesce(c.carried, 0) + coalesce(t.carried, 0),
    coalesce(t.lately, 0)
from queues_queue q join queues_queue target on target.id = q.dead_letter_queue_id
left join queues_deadlettercount c on c.queue_id = q.id and c.target_id = target.id left join (
    select queue_id, target_id, sum(carried)::bigint as carried,
        (sum(carried) filter (where at > now() - interval '1 minute'))::bigint as lately
    from queues_deadlettertally where %(ids)s::int[] is null or queue_id = any(%(ids)s::int[]) group by 1, 2
) as t on t.queue_id = q.id and t.target_id = target.id
where %(ids)s::int[] is null or q.id = any(%(ids)s::int[])
order by 2
