-- Make the partitions of today and the next days (UTC). Returns how many were missing.
select queues_make_audit_partitions((now() at time zone 'UTC')::date, %(days)s)
