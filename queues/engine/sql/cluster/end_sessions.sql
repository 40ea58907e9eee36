-- End sessions that this process has lost and the server may still wait for.
select pg_terminate_backend(pid) from pg_stat_activity
where pid = any(%(pids)s) and application_name like 'fivewire %%' and usename = current_user
    and datname = current_database()
