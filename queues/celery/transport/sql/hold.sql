-- Consume from a temporary queue: keep it for as long as this session lasts.
select pg_advisory_lock_shared(%(lock_class)s, %(queue)s)
