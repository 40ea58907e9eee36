-- An API key that is not revoked, by its name.
select id, name, protocols, publish, consume, manage from queues_apikey
where name = %(name)s and revoked_at is null
