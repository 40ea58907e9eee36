-- The id below which the next `rows` live messages lie; null when there are fewer.
select id from queues_openmessage
where id >= %(low)s and segment > greatest(%(low)s, -9223372036854771712) - 4096
    and segment <= (select queues_last_segment(null, null, greatest(%(low)s, -9223372036854775807) - 1, %(rows)s + 1))
order by id offset %(rows)s limit 1
