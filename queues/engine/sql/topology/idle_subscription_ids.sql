-- The subscriptions that were not polled for so many days and whose noted end has come, each as its id twice. Run with sequential scans allowed.
select id, id from queues_subscription
where used_at < now() - make_interval(days => %(days)s) and coalesce(ends_at, '-infinity') <= now()
    and id <> all(%(skip)s::bigint[])
