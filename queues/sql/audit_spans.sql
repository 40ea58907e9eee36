-- The rows of queues' chains that stand for several messages, this one among them: their chains, and the ids of rows. A row
-- stands for at most so many. They are found by themselves: no chain is walked for them.
with found as materialized (
    select distinct chain_id, record_id from queues_audit
    where event <> 'send' and event <> 'ack' and queues_audit_first(record_id) > %(id)s::bigint - %(most)s
        and queues_audit_first(record_id) <= %(id)s and queues_audit_last(record_id) >= %(id)s
)
select chain_id, record_id from found join queues_auditchain c on c.id = chain_id where name like 'queue:%%'
