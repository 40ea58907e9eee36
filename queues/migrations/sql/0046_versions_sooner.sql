-- The locks are taken in the condition of an `if`, which PL/pgSQL evaluates by itself: `perform` would be a query for
-- each of them, in every publish.

create or replace function queues_topology_version() returns bigint
language plpgsql volatile as $$
-- The version of the topology, which cannot move on until the calling transaction ends.
-- Being volatile it sees what was committed while it waited for the lock, whatever its caller's snapshot is.
begin
    if pg_advisory_xact_lock_shared(hashtext('queues_topology')) is not null then
        return (select coalesce((select version from queues_topology), 0));
    end if;
end $$;

create or replace function queues_may_lease(node integer) returns boolean
language plpgsql volatile as $$
-- Whether a node may lease messages until the calling transaction ends: it has not been declared dead, and who
-- declares it dead waits for the lock. So no lease is ever written for a node that will not be reaped.
begin
    if pg_advisory_xact_lock_shared(74658, node) is not null then
        return exists (select from queues_node where id = node);
    end if;
end $$;

create or replace function queues_publish_version(node integer) returns bigint
language plpgsql volatile as $$
-- The version of the topology for a publish that may lease; null for a node that was declared dead.
begin
    if pg_advisory_xact_lock_shared(74658, node) is not null
        and pg_advisory_xact_lock_shared(hashtext('queues_topology')) is not null
    then
        return (select coalesce((select version from queues_topology), 0) from queues_node n where n.id = node);
    end if;
end $$;
