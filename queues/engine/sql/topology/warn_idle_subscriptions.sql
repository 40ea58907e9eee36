-- Note of subscriptions that were not polled for long when they end: at so many days without a poll, and no sooner than
-- `notice` days from now, which a poll prevents. Returns ids, topics and these times. Run with sequential scans allowed.
update queues_subscription
set ends_at = greatest(used_at + make_interval(days => %(days)s), now() + make_interval(secs => %(notice)s * 86400.0))
where ends_at is null
    and used_at < now() - make_interval(days => %(days)s) + make_interval(secs => %(notice)s * 86400.0)
returning id, topic, ends_at
