-- Delete log lines of jobs that are older than the archive, some at a time. Returns how many.
with old as (
    delete from queues_joblog where ctid = any(array(
        select ctid from queues_joblog where at < now() - make_interval(days => %(days)s) limit %(limit)s))
    returning 1
)
select count(*) from old
