-- The rows as reading.py has them, in PostgreSQL's words and without the export's code. The archive's rows stand in the
-- way they were written, by any writer.
select day, queue, count(*), count(distinct id), sum(('x' || substr(md5(line), 1, 15))::bit(60)::bigint)::text
from (
    select to_char(a.finished_at at time zone 'utc', 'YYYY-MM-DD') as day, q.name as queue, a.id,
        concat_ws('|', a.id,
            case a.outcome when 0 then 'acknowledged' when 1 then 'expired' when 2 then 'purged'
                when 3 then 'dropped' when 4 then 'removed' end,
            a.attempts, trunc(extract(epoch from a.published_at) * 1000000)::bigint,
            trunc(extract(epoch from a.finished_at) * 1000000)::bigint, a.size) as line
    from queues_archive a join queues_queue q on q.id = a.queue_id
) rows group by day, queue
