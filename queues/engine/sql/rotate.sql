-- Truncate the tables of a slot whose turn is over, if nothing is open in them and they are not used; whether it was done.
select queues_rotate(%(slot)s)
