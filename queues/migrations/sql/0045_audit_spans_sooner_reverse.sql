-- A row of a queue's chain may stand for several messages whose ids follow each other: its id is then FIRST-LAST.

create or replace function queues_audit_first(record_id text) returns bigint language sql immutable as
$$ select case when record_id ~ '^[0-9]{1,18}-[0-9]{1,18}$' then split_part(record_id, '-', 1)::bigint end $$;

create or replace function queues_audit_last(record_id text) returns bigint language sql immutable as
$$ select case when record_id ~ '^[0-9]{1,18}-[0-9]{1,18}$' then split_part(record_id, '-', 2)::bigint end $$;
