-- Give the messages of a queue's oldest ready segments rows of their own, until that are so many.
select queues_unpack_ready(%(queue)s, %(count)s)
