-- Drop the days before this one. Returns how many partitions there were.
select queues_drop_audit_partitions(%(before)s)
