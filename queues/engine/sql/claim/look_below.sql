-- Whether queues have anything ready among the ids that claims have passed already, and the transactions under way.
select pg_current_snapshot()::text, queue, exists (
    select from queues_message m
    where m.state = 0 and (m.queue_id, m.id) > (queue, low) and (m.queue_id, m.id) <= (queue, high)
) or exists (
    select from queues_segment s
    where s.slot = 0 and s.node_id is null and (s.queue_id, s.first) > (queue, low)
        and (s.queue_id, s.first) <= (queue, high))
from unnest(%(queues)s::int[], %(lows)s::bigint[], %(highs)s::bigint[]) as looked (queue, low, high)
