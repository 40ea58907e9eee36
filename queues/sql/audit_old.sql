-- Whether there is anything from before that many days ago, and the first day that is kept. Dates are of UTC.
select exists (
        select from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'queues_audit'::regclass and c.relname ~ '^queues_audit_\d{8}$'
            and right(c.relname, 8) < to_char(first, 'YYYYMMDD')
    ) or exists (select from queues_audit_default where at < first::timestamp at time zone 'UTC'),
    first
from (select (now() at time zone 'UTC')::date - %(days)s::int as first) as kept
