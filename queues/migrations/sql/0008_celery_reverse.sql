drop function queues_drop_temporary;
drop function queues_see_temporary;
drop trigger queue_leaves_exchanges on queues_queue;
drop function queues_forget_kombu;
