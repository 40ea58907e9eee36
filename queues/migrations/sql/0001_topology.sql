-- The topology: what publishes must know of queues, subscriptions and routes. Its version moves on with each change,
-- and nodes forget the routes of the addresses that changed. A new queue and a new subscription announce themselves
-- not: no node knows them yet, and a commit that has a notification keeps all others that have one waiting while it
-- waits for the disk.

-- Which addresses each version has changed. Without an address: all.
create table queues_topologychange (
    version bigint not null,
    kind text,
    name bytea,
    queue_id integer
);
create index topologychange_version on queues_topologychange (version);

create function queues_topology_version() returns bigint
language plpgsql volatile as $$
-- The version of the topology, which cannot move on until the calling transaction ends.
-- Being volatile it sees what was committed while it waited for the lock, whatever its caller's snapshot is.
begin
    if pg_advisory_xact_lock_shared(hashtext('queues_topology')) is not null then
        return (select coalesce((select version from queues_topology), 0));
    end if;
end $$;

create function queues_topology_changed() returns trigger
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

-- Policies that a publish must obey at once count as topology too: the others reach nodes by notification.
create constraint trigger queue_changes_topology
    after insert or delete or update of name, max_length, overflow, message_ttl, concurrency_limit, audited
    on queues_queue
    deferrable initially deferred for each row execute function queues_topology_changed();
create constraint trigger subscription_changes_topology after insert or delete or update of topic, qos, queue_id
    on queues_subscription
    deferrable initially deferred for each row execute function queues_topology_changed();
create constraint trigger route_changes_topology after insert or delete or update on queues_route
    deferrable initially deferred for each row execute function queues_topology_changed();

create function queues_dead_letters_end() returns trigger
language plpgsql as $$
-- Refuse a dead-letter target from which dead letters would come back. Two that are set at the same time wait for
-- each other.
declare
    next integer := new.dead_letter_queue_id;
    seen integer[] := array[new.id];
begin
    perform pg_advisory_xact_lock(hashtext('queues_dead_letters'));
    while next is not null loop
        if next = any(seen) then
            raise exception 'the dead letters of queue % would come back to it', new.name
                using errcode = 'check_violation', constraint = 'queue_dead_letters_end';
        end if;
        seen := seen || next;
        next := (select dead_letter_queue_id from queues_queue where id = next);
    end loop;
    return null;
end $$;
create trigger queue_dead_letters_end after insert or update of dead_letter_queue_id on queues_queue
    for each row when (new.dead_letter_queue_id is not null) execute function queues_dead_letters_end();
