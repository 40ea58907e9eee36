-- Drop the archive's partitions of days longer ago than it reaches.
select queues_drop_archive_partitions((now() at time zone 'UTC')::date - %(days)s::int)
