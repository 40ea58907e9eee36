-- Letters that could not be stored after all may be sent again.
delete from queues_letterseen where id = any(%(ids)b::bytea[])
