-- What the samples of the last hour say of each queue: messages that left, dead letters that came; and of its last minutes:
-- how many samples, how many were ready after the first and the last of them and at most, and messages in and out.
with recent as (
    select *, at > now() - make_interval(mins => %(minutes)s) as late from queues_queuesample
    where at > now() - interval '1 hour' and not hourly and queue <> 0
)
select queue, sum(settled)::bigint, sum(died)::bigint, count(*) filter (where late),
    coalesce((array_agg(ready order by at) filter (where late))[1], 0),
    coalesce((array_agg(ready order by at desc) filter (where late))[1], 0), coalesce(max(ready) filter (where late), 0),
    coalesce(sum(published) filter (where late), 0)::bigint, coalesce(sum(settled) filter (where late), 0)::bigint
from recent group by queue
