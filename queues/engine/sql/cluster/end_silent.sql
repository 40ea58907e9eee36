-- End the connections that hold the locks of nodes and have said nothing for so long: every node says something on its
-- own several times a second, unless its process or its machine is frozen. Its lock goes with it, and it counts as
-- dead.
select pg_terminate_backend(a.pid) from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid = %(lock_class)s::bigint::oid
    and l.database = (select oid from pg_database where datname = current_database())
    and a.application_name = 'fivewire liveness' and a.usename = current_user and a.pid <> pg_backend_pid()
    and a.state_change < clock_timestamp() - make_interval(secs => %(silence)s)
