-- The samples of each queue. Over the last hour: messages that consumers acknowledged, dead letters that came. Over its last minutes:
-- samples, messages ready after the first and the last of them and at most, and messages in and out.
select h.queue, h.completed, h.died, coalesce(l.samples, 0), coalesce(l.first_ready, 0), coalesce(l.last_ready, 0),
    coalesce(l.most_ready, 0), coalesce(l.came, 0), coalesce(l.went, 0)
from (
    select queue, sum(completed)::bigint as completed, sum(died)::bigint as died from queues_queuesample
    where at > now() - interval '1 hour' and not hourly and queue <> 0 group by queue
) as h left join (
    select queue, count(*) as samples, (array_agg(ready order by at))[1] as first_ready,
        (array_agg(ready order by at desc))[1] as last_ready, max(ready) as most_ready,
        sum(published)::bigint as came, sum(settled)::bigint as went
    from queues_queuesample
    where at > now() - make_interval(mins => %(minutes)s) and not hourly and queue <> 0 group by queue
) as l using (queue)
