-- Truncate the segments of a slot whose turn is over; false: some are open, or they are used.
select queues_rotate_segments(%(slot)s)
