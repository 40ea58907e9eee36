-- Topics after one, by their bytes: those with subscriptions and those of routes, the first `limit`. How many
-- subscriptions each has, what their queues hold and have ever taken in and acknowledged, and how many routes begin or
-- end there.
with ends as (
    select convert_to(substr(source, 7), 'UTF8') as topic from queues_route where source like 'topic:%%'
    union all
    select convert_to(substr(target, 7), 'UTF8') from queues_route where target like 'topic:%%'
), page as (
    select topic from queues_subscription where topic > %(after)s
    union
    select topic from ends where topic > %(after)s
    order by topic limit %(limit)s
), subscribed as (
    select s.topic, count(*) as subscriptions, sum(c.ready + c.delayed) as waiting, sum(c.leased) as leased,
        sum(c.dead) as dead, sum(c.published) as published, sum(c.completed) as completed
    from queues_subscription s left join queues_queuecount c using (queue_id)
    where s.topic = any(array(select topic from page))
    group by s.topic
), routed as (
    select topic, count(*) as routes from ends group by topic
)
select p.topic, coalesce(s.subscriptions, 0), coalesce(s.waiting, 0), coalesce(s.leased, 0), coalesce(s.dead, 0),
    coalesce(s.published, 0), coalesce(s.completed, 0), coalesce(r.routes, 0)
from page p left join subscribed s using (topic) left join routed r using (topic)
order by p.topic
