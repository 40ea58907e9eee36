-- Delete temporary queues that nobody consumes from. Returns how many.
select queues_drop_temporary(%(lock_class)s, %(queues)s::int[])
