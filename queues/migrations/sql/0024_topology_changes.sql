-- Which addresses each version of the topology has changed, so that nodes forget the routes of these alone. Without an
-- address: all. A new queue and a new subscription announce themselves no more: no node knows them yet, and a commit that
-- has a notification keeps all others that have one waiting while it waits for the disk.
create table queues_topologychange (
    version bigint not null,
    kind text,
    name bytea,
    queue_id integer
);
create index topologychange_version on queues_topologychange (version);

create or replace function queues_topology_changed() returns trigger
language plpgsql as $$
-- Deferred to the commit, so that a long transaction that makes a queue does not hold up every publish.
declare
    moved bigint;
begin
    perform pg_advisory_xact_lock(hashtext('queues_topology'));
    insert into queues_topology as t (id, version) values (1, 1) on conflict (id) do update set version = t.version + 1
    returning version into moved;
    if tg_table_name = 'queues_queue' then
        if tg_op <> 'INSERT' then
            insert into queues_topologychange values (moved, 'queue', convert_to(old.name, 'UTF8'), old.id);
        end if;
        if tg_op = 'INSERT' or (tg_op = 'UPDATE' and new.name <> old.name) then
            insert into queues_topologychange values (moved, 'queue', convert_to(new.name, 'UTF8'), new.id);
        end if;
    elsif tg_table_name = 'queues_subscription' then
        if tg_op <> 'INSERT' then
            insert into queues_topologychange values (moved, 'topic', old.topic, null);
        end if;
        if tg_op = 'INSERT' or (tg_op = 'UPDATE' and new.topic <> old.topic) then
            insert into queues_topologychange values (moved, 'topic', new.topic, null);
        end if;
    else
        insert into queues_topologychange values (moved, null, null, null);
    end if;
    if moved % 1000 = 0 then
        delete from queues_topologychange where version <= moved - 10000;
    end if;
    return null;
end $$;

drop trigger queue_announces on queues_queue;
create trigger queue_announces after update or delete on queues_queue
    for each row execute function queues_announce('queue');
drop trigger subscription_announces on queues_subscription;
create trigger subscription_announces after delete on queues_subscription
    for each row execute function queues_announce('subscription');
