-- The names of API keys, revoked ones too. One row a key: id, name.
select id, name from queues_apikey where id = any(%(ids)s::bigint[])
