alter table queues_deadlettercount
    drop constraint queues_deadlettercount_queue,
    drop constraint queues_deadlettercount_target;
