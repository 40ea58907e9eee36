-- An API key that is not revoked, by its digest with any pepper, or by that of its value before the last rotation as
-- long as this is accepted.
select id, name, protocols, publish, consume, manage from queues_apikey
where digest = any(%(digests)s::text[]) and revoked_at is null
union all
select id, name, protocols, publish, consume, manage from queues_apikey
where old_digest = any(%(digests)s::text[]) and old_until > now() and revoked_at is null
