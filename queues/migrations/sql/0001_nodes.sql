-- Nodes: their leases, and what they are told.

-- The locks are taken in the condition of an `if`, which PL/pgSQL evaluates by itself: `perform` would be a query for
-- each of them, in every publish.
create function queues_may_lease(node integer) returns boolean
language plpgsql volatile as $$
-- Whether a node may lease messages until the calling transaction ends: it has not been declared dead, and who
-- declares it dead waits for the lock. So no lease is ever written for a node that will not be reaped.
begin
    if pg_advisory_xact_lock_shared(74658, node) is not null then
        return exists (select from queues_node where id = node);
    end if;
end $$;

create function queues_publish_version(node integer) returns bigint
language plpgsql volatile as $$
-- The version of the topology for a publish that may lease; null for a node that was declared dead.
begin
    if pg_advisory_xact_lock_shared(74658, node) is not null
        and pg_advisory_xact_lock_shared(hashtext('queues_topology')) is not null
    then
        return (select coalesce((select version from queues_topology), 0) from queues_node n where n.id = node);
    end if;
end $$;

-- Notifications of lists are sent in parts: PostgreSQL refuses those of 8,000 bytes and more.
create function queues_notify_interest(word text, queues integer[], node integer) returns void
language plpgsql volatile as $$
-- Tell every node that a node serves these queues from now on ('interest') or no longer ('disinterest').
begin
    perform pg_notify('fivewire', json_build_object(word, json_agg(queue), 'node', node)::text)
    from unnest(queues) with ordinality as given (queue, n)
    group by (n - 1) / 500;
end $$;

create function queues_announce() returns trigger
language plpgsql as $$
-- Tell every node which row of which table changed: policies, keys and the like are read again.
declare
    row_id bigint := case when tg_op = 'DELETE' then old.id else new.id end;
begin
    perform pg_notify('fivewire', json_build_object(tg_argv[0], row_id)::text);
    return null;
end $$;
create trigger queue_announces after update or delete on queues_queue
    for each row execute function queues_announce('queue');
create trigger subscription_announces after delete on queues_subscription
    for each row execute function queues_announce('subscription');
-- A key that was just made cannot have changed: a client that uses it at once must not be told that it has.
create trigger key_announces after update or delete on queues_apikey
    for each row execute function queues_announce('key');
create trigger route_announces after insert or update or delete on queues_route
    for each row execute function queues_announce('route');
-- Periodic jobs that may be due earlier, and bulk operations that have begun, tell the nodes that run them.
create trigger periodic_job_announces_itself after insert on queues_periodicjob
    for each row when (new.enabled) execute function queues_announce('periodic');
create trigger periodic_job_announces_change after update on queues_periodicjob
    for each row when (new.enabled and (not old.enabled or old.next_run_at is null
        or new.next_run_at is null or new.next_run_at < old.next_run_at))
    execute function queues_announce('periodic');
create trigger bulk_operation_announces_itself after insert on queues_bulkoperation
    for each row execute function queues_announce('bulk');

-- Instructions to nodes. They are no notifications: any role may send these, but only the broker's own may write
-- here. Unlogged: a node that lives through a crash of the server comes back as another one, without its memory.
create unlogged table queues_instruction (
    node_id integer not null,
    id bigint generated always as identity,
    text text not null,
    primary key (node_id, id)
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
revoke all on queues_instruction from public;

create function queues_instruct(texts text[], nodes integer[]) returns void
language plpgsql volatile as $$
-- Tell each text to its node, or to every node (null), and all nodes from which id on there is something to read.
declare
    first bigint;
begin
    with told as (
        insert into queues_instruction (node_id, text)
        select n.id, t.text
        from unnest(texts, nodes) with ordinality as t (text, node, place)
            join queues_node n on n.id = coalesce(t.node, n.id)
        order by place
        returning id
    )
    select min(id) into first from told;
    if first is not null then
        perform pg_notify('fivewire', json_build_object('instructions', first)::text);
    end if;
end $$;

-- Workers and connections vanish with their node. They are written anew every second or two while clients are at
-- work, and clients that come and go decide how often: no log of that, and small pages that are cleaned at once.
-- After a crash of the server the tables are empty.
alter table queues_worker
    add constraint queues_worker_node foreign key (node_id) references queues_node (id) on delete cascade;
alter table queues_connection
    add column queues integer[] not null default '{}',
    -- How many messages of each of these queues the connection was given and has not settled.
    add column queues_unacked integer[] not null default '{}',
    add constraint queues_connection_node foreign key (node_id) references queues_node (id) on delete cascade;
alter table queues_connectiontotal
    add constraint queues_connectiontotal_node foreign key (node_id) references queues_node (id) on delete cascade;
alter table queues_worker set unlogged;
alter table queues_connection set unlogged;
alter table queues_connectiontotal set unlogged;
alter table queues_connection set (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
alter table queues_connectiontotal set (fillfactor = 50);
