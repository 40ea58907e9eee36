-- Forget the ids of letters that were sent before the dedupe window, some at a time. Returns how many.
with old as (
    delete from queues_letterseen where id = any(array(
        select id from queues_letterseen where at < now() - make_interval(secs => %(window)s) limit %(limit)s))
    returning 1
)
select count(*) from old
