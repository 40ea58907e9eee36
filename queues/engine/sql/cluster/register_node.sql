-- A process that runs the engine begins its life.
insert into queues_node (id, name, host, pid, first_message_id, engine)
values (%(id)s, %(name)s, %(host)s, %(pid)s, nextval('queues_message_id'), %(engine)s::uuid)
returning id, first_message_id
