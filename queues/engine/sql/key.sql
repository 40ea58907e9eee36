-- An API key that is not revoked, by its digest with any pepper.
select id, name, protocols, publish, consume, manage from queues_apikey
where digest = any(%(digests)s::text[]) and revoked_at is null
