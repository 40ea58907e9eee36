-- Back to what Django's models alone make. The rows are lost with their partitions.
drop function queues_audit_complete(bigint, bigint);
drop function queues_audit_head(text);
drop table queues_audit;
drop function queues_drop_audit_partitions(date);
drop function queues_make_audit_partitions(date, integer);
drop function queues_audit_refuse();
create table queues_audit (
    chain_id integer not null, seq bigint primary key, at timestamptz not null, event text not null,
    record_id text not null, sender text not null, recipient text not null, hash bytea not null
);
alter table queues_auditanchor drop constraint auditanchor_sizes;
drop table queues_audithead;
create table queues_audithead (
    chain_id integer primary key, next_seq bigint not null constraint audithead_next_seq check (next_seq >= 0),
    hash bytea not null, last_at timestamptz
);
