-- End the engine's sessions, of any node, that have been waiting for their process in the middle of a transaction, to
-- speak or to listen, for longer than any takes that is not frozen: they hold locks that others wait for. The server's
-- own limit (idle_in_transaction_session_timeout) does not see those in a pipeline, since they count as active, and
-- grants a frozen process's next session, which has waited for the lock of the one before, its full time again: hence
-- `held`.
select pg_terminate_backend(pid) from pg_stat_activity
where application_name = any(%(names)s::text[]) and usename = current_user and datname = current_database()
    and pid <> pg_backend_pid() and wait_event in ('ClientRead', 'ClientWrite')
    and xact_start < clock_timestamp() - make_interval(secs => %(patience)s)
    and state_change < clock_timestamp() - make_interval(
        secs => case state when 'active' then %(patience)s when 'idle in transaction' then %(held)s end
    )
