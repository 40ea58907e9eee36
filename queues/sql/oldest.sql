-- When the first message that is ready was published, by queue; queues without one are left out. One index probe each.
select q.id, m.published_at
from unnest(%(queues)s::int[]) as q (id), lateral (
    select published_at from queues_message where queue_id = q.id and state = 0 order by queue_id, id limit 1
) as m
