-- Have an exclusive queue for as long as this session lasts. Returns whether no other session has it.
select pg_try_advisory_lock(%(owner_class)s, %(queue)s)
