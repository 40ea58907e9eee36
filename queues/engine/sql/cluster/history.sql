-- Values that tell one past of the store from another: timeline (null on a standby), ids of the database and of the
-- table of messages, the last of the messages' ids, how much of the log is on disk; and the server's clock, a Unix
-- time.
select case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end,
    (select oid::bigint from pg_database where datname = current_database()), 'queues_message'::regclass::oid::bigint,
    coalesce(pg_sequence_last_value('queues_message_id'), 0),
    case when not pg_is_in_recovery() then (pg_current_wal_flush_lsn() - '0/0')::bigint end,
    extract(epoch from clock_timestamp())::float8
