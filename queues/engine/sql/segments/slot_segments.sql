-- Segments of a slot with open messages: first ids and queues.
select first, queue_id from queues_opensegment where slot = %(slot)s and first <> all(%(skip)s::bigint[])
