-- A queue by its name.
select id from queues_queue where name = %(name)s
