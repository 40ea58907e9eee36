-- Making or dropping a partition of the archive takes a lock for which it may have to wait until a backup or another
-- long query ends; meanwhile every acknowledgement would wait behind it. So it gives up, and tries again later.
alter function queues_make_archive_partitions(date, integer) set lock_timeout = '200ms';
alter function queues_drop_archive_partitions(date) set lock_timeout = '200ms';
