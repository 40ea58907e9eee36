-- Exact counts: each statement adds a tally in place of changing a row that others change too; tallies are folded
-- into the counts later on. They stand in tables that take turns, as segments do: slot 0 has those that are folded
-- row by row.

-- A partition has no identity column before PostgreSQL 17.
create sequence queues_tally_id as bigint;
create table queues_queuetally (
    id bigint not null default nextval('queues_tally_id'),
    ready integer not null default 0,
    leased integer not null default 0,
    delayed integer not null default 0,
    dead integer not null default 0,
    published integer not null default 0,
    settled integer not null default 0,
    queue_id integer not null,
    completed integer not null default 0,
    slot smallint not null default 0
) partition by list (slot);
-- What waits can be consumed while the disk is full: a claim adds a tally, whose table keeps its room.
create table queues_queuetally_kept partition of queues_queuetally (
    constraint queues_queuetally_pkey primary key (id), constraint kept check (slot = 0)
) for values in (0) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
create index tally_queue on queues_queuetally_kept (queue_id, id);
do $$
begin
    for slot in 1..3 loop
        execute format('create table queues_queuetally_%1$s partition of queues_queuetally for values in (%1$s)
            with (autovacuum_enabled = false)', slot);
        execute format('create index queues_queuetally_%1$s_queue on queues_queuetally_%1$s (queue_id)', slot);
    end loop;
end $$;

-- Counts of routes and of dead letters go with the route and with either queue, however these are deleted.
alter table queues_routecount
    add constraint queues_routecount_route foreign key (route_id) references queues_route (id) on delete cascade;
alter table queues_deadlettercount
    add constraint queues_deadlettercount_queue foreign key (queue_id) references queues_queue (id) on delete cascade,
    add constraint queues_deadlettercount_target foreign key (target_id) references queues_queue (id) on delete cascade;

-- The history of an installation begins now: its first sample notes what has come since.
insert into queues_samplemark (queue, at, ready, leased, delayed, dead, published, settled)
values (0, now(), 0, 0, 0, 0, 0, 0);

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

create function queues_room_locked(queue integer) returns bigint
language plpgsql volatile as $$
-- As queues_room; others that ask wait until commit, so that two cannot both take the last place.
begin
    perform 1 from queues_queuecount where queue_id = queue for update;
    return queues_room(queue);
end $$;

create function queues_concurrency_left(queue integer) returns bigint
language plpgsql volatile as $$
-- The free leases of a queue with a concurrency limit; others that ask wait until commit.
begin
    perform 1 from queues_queuecount where queue_id = queue for update;
    return (select q.concurrency_limit - h.leased from queues_queue q, queues_held(q.id) h where q.id = queue);
end $$;
