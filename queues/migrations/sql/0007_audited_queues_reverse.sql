drop trigger queue_begins_audited on queues_queue;
drop trigger queue_switches_audit on queues_queue;
drop trigger queue_ends_audited on queues_queue;
drop function queues_audit_switched();

drop trigger queue_changes_topology on queues_queue;
create constraint trigger queue_changes_topology
    after insert or delete or update of name, max_length, overflow, message_ttl, concurrency_limit on queues_queue
    deferrable initially deferred for each row execute function queues_topology_changed();
