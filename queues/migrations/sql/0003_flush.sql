-- Emptying the tables, as `manage.py flush` and Django's tests do: TRUNCATE … RESTART IDENTITY of Django's tables.

-- Clients, live processes, the archive and exports know these rows by id. An id that came back would give one queue's
-- messages to the consumers of another. The sequences belong to no column: neither TRUNCATE nor Django resets them.
create function queues_new_id(numbers regclass, rows regclass) returns bigint
language plpgsql volatile as $$
-- An id that no row has and no row had. Rows with ids of their own come from fixtures.
declare
    id bigint;
    taken boolean;
begin
    loop
        id := nextval(numbers);
        execute format('select exists (select from %s where id = $1)', rows) into taken using id;
        if not taken then
            return id;
        end if;
    end loop;
end $$;

do $$
declare
    named text;
    numbers text;
    last bigint;
    kind text;
begin
    foreach named in array array['queues_apikey', 'queues_auditchain', 'queues_bulkoperation', 'queues_consumer',
        'queues_etlrun', 'queues_node', 'queues_periodicjob', 'queues_queue', 'queues_route', 'queues_subscription']
    loop
        numbers := named || '_id_seq';
        last := pg_sequence_last_value(numbers::regclass);
        select format_type(atttypid, null) into strict kind
        from pg_attribute where attrelid = named::regclass and attname = 'id';
        execute format('alter table %I alter column id drop identity', named);
        execute format('create sequence %I as %s', numbers, kind);
        if last is not null then
            perform setval(numbers::regclass, last);
        end if;
        execute format('alter table %I alter column id set default queues_new_id(%L::regclass, %L::regclass)', named,
            numbers, named);
    end loop;
end $$;

create function queues_truncate_grown(named text[]) returns void
language plpgsql as $$
-- Truncate those of these tables, and of their partitions, that have anything.
declare
    grown text;
begin
    with recursive tables as (
        select name::regclass::oid as id from unnest(named) as name
        union
        select inhrelid from pg_inherits join tables on inhparent = tables.id
    )
    select string_agg(id::regclass::text, ', ') into grown
    from tables join pg_class on oid = id where relkind = 'r' and pg_relation_size(id) > 0;
    if grown is not null then
        execute 'truncate ' || grown;
    end if;
end $$;

create function queues_emptied() returns trigger
language plpgsql as $$
-- Every queue is gone, and so are the messages, which are in tables that Django knows nothing of.
begin
    perform queues_truncate_grown(array['queues_message', 'queues_segment', 'queues_segmentbody',
        'queues_segmentsettlement', 'queues_queuetally', 'queues_archivedmessage', 'queues_archivedsegment',
        'queues_topologychange', 'queues_instruction', 'queues_rollupdraft']);
    insert into queues_topology as t (id, version) values (1, 1) on conflict (id) do update set version = t.version + 1;
    return null;
end $$;
create trigger queues_are_emptied after truncate on queues_queue
    for each statement execute function queues_emptied();

create function queues_nodes_emptied() returns trigger
language plpgsql as $$
-- Nodes remember queues, keys and deliveries. The end of the connection that holds a node's lock has its process forget
-- them and come back as another node.
begin
    perform pg_terminate_backend(pid) from pg_locks
    where locktype = 'advisory' and granted and objsubid = 2 and classid = 74657::oid and pid <> pg_backend_pid()
        and database = (select oid from pg_database where datname = current_database());
    return null;
exception when insufficient_privilege then
    return null;
end $$;
create trigger nodes_are_emptied before truncate on queues_node
    for each statement execute function queues_nodes_emptied();

create function queues_audit_emptied() returns trigger
language plpgsql as $$
-- Every audit chain is gone, and so are its rows.
begin
    perform queues_truncate_grown(array['queues_audithead', 'queues_audit']);
    return null;
end $$;
create trigger audit_is_emptied after truncate on queues_auditchain
    for each statement execute function queues_audit_emptied();

create function queues_topology_moves_on() returns trigger
language plpgsql as $$
-- The version never goes back, since a node that knows it would go on with routes of queues that are gone: not with the
-- table emptied, nor with an earlier version written, as Django's tests restore it.
begin
    if tg_op = 'UPDATE' then
        new.version := greatest(new.version, old.version + 1);
        return new;
    end if;
    if tg_when = 'BEFORE' then
        perform set_config(
            'fivewire.topology_version', coalesce((select version from queues_topology), 0)::text, true);
    else
        insert into queues_topology (id, version)
        values (1, current_setting('fivewire.topology_version')::bigint + 1)
        on conflict (id) do update set version = excluded.version;
        perform queues_truncate_grown(array['queues_topologychange']);
    end if;
    return null;
end $$;
create trigger topology_moves_on before update on queues_topology
    for each row execute function queues_topology_moves_on();
create trigger topology_is_emptied before truncate on queues_topology
    for each statement execute function queues_topology_moves_on();
create trigger topology_was_emptied after truncate on queues_topology
    for each statement execute function queues_topology_moves_on();

insert into queues_topology (id, version) values (1, 1) on conflict do nothing;
