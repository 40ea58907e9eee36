-- Delete temporary queues without a consumer. Returns how many.
select queues_drop_temporary(%(lock_class)s, %(queues)s::int[])
