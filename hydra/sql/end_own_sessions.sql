-- End sessions that this process has lost, and that the server may still take for living.
select pg_terminate_backend(pid) from pg_stat_activity
where pid = any(%(pids)s) and application_name = any(%(names)s) and usename = current_user
