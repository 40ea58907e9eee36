-- Make a queue with the default policy unless there is one of this name.
insert into queues_queue (name, uuid, max_attempts, retry_backoff, ack_timeout)
values (%(name)s, gen_random_uuid(), %(max_attempts)s, make_interval(secs => %(retry_backoff)s),
    make_interval(secs => %(ack_timeout)s))
on conflict (name) do nothing
