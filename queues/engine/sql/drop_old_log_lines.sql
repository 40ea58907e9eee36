-- Forget what workers wrote about their jobs longer ago than the archive reaches.
delete from queues_joblog where at < now() - make_interval(days => %(days)s)
