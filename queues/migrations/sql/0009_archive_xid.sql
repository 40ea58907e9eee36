-- Which transaction has written each row of the archive: a reader finds new rows by that alone.
-- Rows from before have 0, which every snapshot sees. Neither statement rewrites the table.
alter table queues_archive add column xid bigint not null default 0;
-- The engine's statements give the number themselves, once each instead of once a row.
alter table queues_archive alter column xid set default pg_current_xact_id()::text::bigint;
create index queues_archive_xid on queues_archive using brin (xid) with (pages_per_range = 32);
