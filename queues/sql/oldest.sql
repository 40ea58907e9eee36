-- When the first message that is ready was published, by queue; queues without one are left out. Two index probes each.
select q.id, m.published_at
from unnest(%(queues)s::int[]) as q (id), lateral (
    select published_at from (
        (select id, published_at from queues_message where queue_id = q.id and state = 0 order by queue_id, id limit 1)
        union all
        (select first, published_at from queues_segment
        where slot = 0 and node_id is null and (queue_id, first) > (q.id, 0)
            and (queue_id, first) <= (q.id, 9223372036854775807)
        order by queue_id, first limit 1)
    ) as firsts order by id limit 1
) as m
