alter function queues_make_archive_partitions(date, integer) reset lock_timeout;
alter function queues_drop_archive_partitions(date) reset lock_timeout;
