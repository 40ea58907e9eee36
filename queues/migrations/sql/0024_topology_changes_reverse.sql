drop trigger subscription_announces on queues_subscription;
create trigger subscription_announces after insert or delete on queues_subscription
    for each row execute function queues_announce('subscription');
drop trigger queue_announces on queues_queue;
create trigger queue_announces after insert or update or delete on queues_queue
    for each row execute function queues_announce('queue');
create or replace function queues_topology_changed() returns trigger
language plpgsql as $$
-- Deferred to the commit, so that a long transaction that makes a queue does not hold up every publish.
begin
    perform pg_advisory_xact_lock(hashtext('queues_topology'));
    insert into queues_topology as t (id, version) values (1, 1) on conflict (id) do update set version = t.version + 1;
    return null;
end $$;
drop table queues_topologychange;
