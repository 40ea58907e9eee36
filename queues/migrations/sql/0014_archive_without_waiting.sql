-- Whoever makes or drops a partition of the archive wants a lock for which it may have to wait until a backup or somebody's
-- long query ends; meanwhile every acknowledgement would wait behind it. So it gives up, and tries again later.
alter function queues_make_archive_partitions(date, integer) set lock_timeout = '200ms';
alter function queues_drop_archive_partitions(date) set lock_timeout = '200ms';
