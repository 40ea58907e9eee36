-- Workers vanish with their node, and periodic jobs that may be due earlier tell the nodes that run them.

alter table queues_worker
    add constraint queues_worker_node foreign key (node_id) references queues_node (id) on delete cascade;
-- A snapshot that is written again within a second needs no log; after a crash of the server it is empty.
alter table queues_worker set unlogged;

create trigger periodic_job_announces_itself after insert on queues_periodicjob
    for each row when (new.enabled) execute function queues_announce('periodic');
create trigger periodic_job_announces_change after update on queues_periodicjob
    for each row when (new.enabled and (not old.enabled or old.next_run_at is null
        or new.next_run_at is null or new.next_run_at < old.next_run_at))
    execute function queues_announce('periodic');
