-- End sessions that this process has lost and the server may still count as alive.
select pg_terminate_backend(pid) from pg_stat_activity
where pid = any(%(pids)s) and application_name = any(%(names)s) and usename = current_user
    and datname = current_database()
