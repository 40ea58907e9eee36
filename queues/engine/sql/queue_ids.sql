-- Queues by their names.
select name, id from queues_queue where name = any(%(names)s::text[])
