-- Queues that are audited: a publish obeys it at once, and each switch on or off is recorded.

drop trigger queue_changes_topology on queues_queue;
create constraint trigger queue_changes_topology
    after insert or delete or update of name, max_length, overflow, message_ttl, concurrency_limit, audited on queues_queue
    deferrable initially deferred for each row execute function queues_topology_changed();

create function queues_audit_switched() returns trigger
language plpgsql as $$
-- Note in the queue's own chain that it is audited from now on, is no longer, or is gone. Who did it is what the
-- transaction has said (fivewire.operator), else who is logged in to the database.
declare
    queue text := case when tg_op = 'DELETE' then old.name else new.name end;
begin
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    values (
        'queue:' || queue,
        case when tg_op = 'DELETE' then 'delete' when new.audited then 'audit-on' else 'audit-off' end,
        'queue:' || queue,
        coalesce(nullif(current_setting('fivewire.operator', true), ''), 'database:' || session_user),
        '');
    return null;
end $$;
create trigger queue_begins_audited after insert on queues_queue
    for each row when (new.audited) execute function queues_audit_switched();
create trigger queue_switches_audit after update of audited on queues_queue
    for each row when (old.audited <> new.audited) execute function queues_audit_switched();
create trigger queue_ends_audited after delete on queues_queue
    for each row when (old.audited) execute function queues_audit_switched();
