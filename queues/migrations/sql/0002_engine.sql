-- The engine's schema beyond Django's models: the sequence of message ids, the partitioned archive,
-- functions that its statements call, and triggers that tell running nodes of every change.

-- A statement takes one value and uses it and the next 4095 as ids: no block is held between statements, so
-- a later publish, on any node, gets a greater id.
create sequence queues_message_id as bigint start 4096 increment 4096;

alter table queues_message set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500000
);
-- Payloads are often compressed or small: trying to compress each costs more than it saves.
alter table queues_message alter column payload set storage external;
alter table queues_queuetally set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

drop table queues_archive;
create table queues_archive (
    id bigint not null,
    queue_id integer not null,
    outcome smallint not null,
    attempts smallint not null,
    producer_id bigint,
    consumer_id bigint,
    published_at timestamptz not null,
    delivered_at timestamptz,
    finished_at timestamptz not null,
    size integer not null,
    key text,
    headers jsonb,
    payload bytea
) partition by range (finished_at);
alter table queues_archive alter column payload set storage external;
create index queues_archive_finished on queues_archive using brin (finished_at);
create index queues_archive_id on queues_archive using brin (id);
-- Catches what no day's partition does, so that an acknowledgement never fails for want of one.
create table queues_archive_default partition of queues_archive default;

create function queues_make_archive_partitions(first_day date, days integer) returns integer
language plpgsql as $$
-- Make the partitions of these days (UTC) that do not exist; returns how many were made.
declare
    made integer := 0;
    day date;
    partition text;
begin
    perform pg_advisory_xact_lock(hashtext('queues_archive'));
    for i in 0 .. days - 1 loop
        day := first_day + i;
        partition := 'queues_archive_' || to_char(day, 'YYYYMMDD');
        if to_regclass(partition) is null then
            -- Rows that fell into the default partition would forbid the new one: move them.
            execute format('create table %I (like queues_archive including defaults including storage)', partition);
            execute format(
                'with moved as (delete from queues_archive_default where finished_at >= %1$L and finished_at < %2$L
                 returning *) insert into %3$I select * from moved',
                day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC', partition);
            execute format('alter table queues_archive attach partition %I for values from (%L) to (%L)', partition,
                day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC');
            made := made + 1;
        end if;
    end loop;
    return made;
end $$;

create function queues_drop_archive_partitions(before_day date) returns integer
language plpgsql as $$
-- Drop the partitions of all days before this one; returns how many there were.
declare
    dropped integer := 0;
    partition text;
begin
    perform pg_advisory_xact_lock(hashtext('queues_archive'));
    for partition in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'queues_archive'::regclass and c.relname ~ '^queues_archive_\d{8}$'
            and right(c.relname, 8) < to_char(before_day, 'YYYYMMDD')
    loop
        execute format('drop table %I', partition);
        dropped := dropped + 1;
    end loop;
    return dropped;
end $$;

select queues_make_archive_partitions((now() at time zone 'UTC')::date, 7);

create function queues_topology_version() returns bigint
language plpgsql volatile as $$
-- The version of the topology, which cannot move on until the calling transaction ends.
-- Being volatile it sees what was committed while it waited for the lock, whatever its caller's snapshot is.
begin
    perform pg_advisory_xact_lock_shared(hashtext('queues_topology'));
    return coalesce((select version from queues_topology), 0);
end $$;

create function queues_may_lease(node integer) returns boolean
language plpgsql volatile as $$
-- Whether a node may lease messages until the calling transaction ends: it has not been declared dead, and who
-- declares it dead waits for the lock. So no lease is ever written for a node that will not be reaped.
begin
    perform pg_advisory_xact_lock_shared(74658, node);
    return exists (select from queues_node where id = node);
end $$;

create function queues_publish_version(node integer) returns bigint
language plpgsql volatile as $$
-- The version of the topology for a publish that may lease; null for a node that was declared dead.
begin
    return case when queues_may_lease(node) then queues_topology_version() end;
end $$;

create function queues_topology_changed() returns trigger
language plpgsql as $$
-- Deferred to the commit, so that a long transaction that makes a queue does not hold up every publish.
begin
    perform pg_advisory_xact_lock(hashtext('queues_topology'));
    insert into queues_topology as t (id, version) values (1, 1) on conflict (id) do update set version = t.version + 1;
    return null;
end $$;

-- Policies that a publish must obey at once count as topology too: the others reach nodes by notification.
create constraint trigger queue_changes_topology
    after insert or delete or update of name, max_length, overflow, message_ttl, concurrency_limit on queues_queue
    deferrable initially deferred for each row execute function queues_topology_changed();
create constraint trigger subscription_changes_topology after insert or delete or update of topic, qos, queue_id
    on queues_subscription
    deferrable initially deferred for each row execute function queues_topology_changed();
create constraint trigger route_changes_topology after insert or delete or update on queues_route
    deferrable initially deferred for each row execute function queues_topology_changed();

create function queues_add_count() returns trigger
language plpgsql as $$
begin
    insert into queues_queuecount (queue_id) values (new.id) on conflict do nothing;
    return null;
end $$;
create trigger queue_has_count after insert on queues_queue for each row execute function queues_add_count();

create function queues_held(queue integer) returns table (ready bigint, leased bigint, delayed bigint, dead bigint)
language sql volatile as $$
-- A queue's counts as committed now: the folded ones and the tallies.
    select (c.ready + coalesce(t.ready, 0))::bigint, (c.leased + coalesce(t.leased, 0))::bigint,
        (c.delayed + coalesce(t.delayed, 0))::bigint, (c.dead + coalesce(t.dead, 0))::bigint
    from queues_queuecount c, lateral (
        select sum(t.ready) as ready, sum(t.leased) as leased, sum(t.delayed) as delayed, sum(t.dead) as dead
        from queues_queuetally t where t.queue_id = c.queue_id) as t
    where c.queue_id = queue
$$;

create function queues_room(queue integer) returns bigint
language plpgsql volatile as $$
-- The free places of a queue with a maximum length.
begin
    return (select q.max_length - h.ready - h.leased - h.delayed
        from queues_queue q, queues_held(q.id) h where q.id = queue);
end $$;

create function queues_concurrency_left(queue integer) returns bigint
language plpgsql volatile as $$
-- The free leases of a queue with a concurrency limit; others that ask wait until commit.
begin
    perform 1 from queues_queuecount where queue_id = queue for update;
    return (select q.concurrency_limit - h.leased from queues_queue q, queues_held(q.id) h where q.id = queue);
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
create trigger queue_announces after insert or update or delete on queues_queue
    for each row execute function queues_announce('queue');
create trigger subscription_announces after insert or delete on queues_subscription
    for each row execute function queues_announce('subscription');
create trigger key_announces after insert or update or delete on queues_apikey
    for each row execute function queues_announce('key');
create trigger route_announces after insert or update or delete on queues_route
    for each row execute function queues_announce('route');
