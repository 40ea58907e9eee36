-- Those of these API keys that are not revoked, by their ids.
select id, name, protocols, publish, consume, manage from queues_apikey
where id = any(%(ids)s::bigint[]) and revoked_at is null
