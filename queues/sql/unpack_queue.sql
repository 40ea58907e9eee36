-- Give each open message of a queue's segments a row of its own; returns the first ids of the segments.
select queues_unpack_segments(array(select first from queues_opensegment where queue_id = %(queue)s))
