-- Fold the tallies of a slot whose turn is over, and truncate them; false: they are used.
select queues_rotate_tallies(%(slot)s)
