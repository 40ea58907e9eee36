-- Consume from a temporary queue no longer.
select pg_advisory_unlock_shared(%(lock_class)s, %(queue)s)
