-- An API key that is not revoked, by its digest.
select id, name, protocols, publish, consume, manage from queues_apikey
where digest = %(digest)s and revoked_at is null
