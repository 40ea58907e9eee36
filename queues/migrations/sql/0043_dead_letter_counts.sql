-- The count goes with either queue, however that is deleted.
alter table queues_deadlettercount
    add constraint queues_deadlettercount_queue foreign key (queue_id) references queues_queue (id) on delete cascade,
    add constraint queues_deadlettercount_target foreign key (target_id) references queues_queue (id) on delete cascade;
