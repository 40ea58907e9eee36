-- The API key of the rows.
insert into queues_apikey (id, name, digest, hint, protocols, publish, consume, manage)
values (1, 'bench', 'x', '', '{}', '{}', '{}', '{}')
