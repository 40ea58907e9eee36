-- End a session of this database by its process id and the moment it began; no row if it is gone.
select pg_terminate_backend(pid) from pg_stat_activity
where pid = %(pid)s and datname = current_database() and extract(epoch from backend_start)::text = %(started)s
