-- Make the archive's partitions of this day (UTC) and the six to come.
select queues_make_archive_partitions((now() at time zone 'UTC')::date, 7)
