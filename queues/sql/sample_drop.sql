-- Forget samples that are older than so many days, and those of queues that are gone. The caller has the turn.
delete from queues_queuesample s where s.at < now() - make_interval(days => %(days)s)
    or (s.queue <> 0 and not exists (select from queues_queue q where q.id = s.queue))
returning s.queue
