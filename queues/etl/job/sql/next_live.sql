-- The id below which the next `rows` live messages lie; null when there are fewer.
select id from queues_openmessage where id >= %(low)s order by id offset %(rows)s limit 1
