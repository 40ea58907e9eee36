-- A bulk operation that has begun tells the nodes that do its steps.
create trigger bulk_operation_announces_itself after insert on queues_bulkoperation
    for each row execute function queues_announce('bulk');
