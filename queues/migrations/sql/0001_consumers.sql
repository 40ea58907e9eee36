-- Queues with a single active consumer, and mailboxes, which are such queues: who has one, and how it is taken over.

-- Unlogged: the server's crash ends every connection of every node, and they come anew. Rows vanish with their node and
-- queue.
alter table queues_consumer
    add constraint queues_consumer_queue foreign key (queue_id) references queues_queue (id) on delete cascade;
alter table queues_consumer
    add constraint queues_consumer_node foreign key (node_id) references queues_node (id) on delete cascade;
alter table queues_consumer set unlogged;

create function queues_lock_lines(queues integer[]) returns void
language plpgsql volatile as $$
-- No other transaction changes the consumers of these queues, as for mailboxes, until the calling one ends. In order,
-- so that no two transactions wait for each other.
begin
    perform pg_advisory_xact_lock(74659, queue) from (select distinct unnest(queues) as queue order by 1) as ordered;
end $$;

create function queues_elect_consumers(queues integer[]) returns void
language plpgsql volatile as $$
-- Of each queue without an active consumer make the one active that came first, and tell the nodes. The queues are
-- locked.
declare
    elected integer[];
begin
    with changed as (
        update queues_consumer set active = true, active_since = clock_timestamp()
        where id in (
            select min(id) from queues_consumer
            where queue_id = any(queues) group by queue_id having not bool_or(active)
        )
        returning queue_id
    )
    select array_agg(queue_id) into elected from changed;
    perform pg_notify('fivewire', json_build_object('active', json_agg(queue))::text)
    from unnest(elected) with ordinality as given (queue, n) group by (n - 1) / 500;
end $$;

create function queues_join_lines(queues integer[], connections bigint[], names text[], node integer)
returns table (place bigint, consumer bigint)
language plpgsql volatile as $$
-- Consumers of a node come, each for a queue with a single active one. Returns the number of each by its place in the
-- arrays; those of queues that are gone get none, nor does a node that was declared dead.
begin
    if not queues_may_lease(node) then
        return;
    end if;
    perform queues_lock_lines(queues);
    return query
        with given as (
            select * from unnest(queues, connections, names) with ordinality as g (queue, connection, name, n)
        ), made as (
            insert into queues_consumer (id, queue_id, node_id, connection, name)
            select nextval('queues_consumer_id_seq'), g.queue, node, g.connection, g.name
            from given g join queues_queue q on q.id = g.queue and q.single_active_consumer order by g.n
            returning id, queue_id
        ), numbered as (
            select id, queue_id, row_number() over (partition by queue_id order by id) as rank from made
        )
        select g.n, m.id
        from (select *, row_number() over (partition by queue order by given.n) as rank from given) as g
            join numbered m on m.queue_id = g.queue and m.rank = g.rank;
    perform queues_elect_consumers(queues);
end $$;

create function queues_leave_lines(numbers bigint[], node integer) returns void
language plpgsql volatile as $$
-- Consumers of a node, all of them if `numbers` is null, have ended, and what they had is settled or ready again: the
-- next ones are active.
declare
    queues integer[];
begin
    loop
        queues := array(
            select distinct queue_id from queues_consumer where node_id = node and coalesce(id = any(numbers), true)
        );
        exit when queues = '{}';
        perform queues_lock_lines(queues);
        delete from queues_consumer
        where node_id = node and coalesce(id = any(numbers), true) and queue_id = any(queues);
        perform queues_elect_consumers(queues);
    end loop;
end $$;

alter table queues_letterseen set (
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000);
create sequence queues_mailbox_connection as bigint;

create function queues_holds_mailbox(mailbox integer, by_connection bigint) returns boolean
language plpgsql volatile as $$
-- Whether a connection has a mailbox; it then keeps it until the calling transaction ends. Who takes a mailbox over
-- waits for the lock, so that whatever the connection before has sent or been given is committed first.
begin
    perform pg_advisory_xact_lock_shared(74659, mailbox);
    return exists (select from queues_mailbox where queue_id = mailbox and connection = by_connection);
end $$;

create function queues_requeue_letters(mailbox integer) returns bigint
language plpgsql volatile as $$
-- Make ready again, where it was, whatever was delivered from a mailbox and not acknowledged; returns how many.
declare
    returned bigint;
begin
    update queues_message
    set state = 0, node_id = null, tag = null, attempts = least(attempts + 1, 32767)
    where queue_id = mailbox and tag is not null and state = 1;
    get diagnostics returned = row_count;
    if returned > 0 then
        insert into queues_queuetally (queue_id, ready, leased) values (mailbox, returned, -returned);
    end if;
    return returned;
end $$;

create function queues_take_mailbox(
    named text, by_key bigint, at_node integer, by_owner_only boolean, former bigint,
    out mailbox integer, out taken bigint, out refused text
) language plpgsql volatile as $$
-- Give a mailbox, made if need be, to a new connection of a node. `former` is the number of the connection if it had
-- the mailbox until its node lost the database: then a connection that took it meanwhile keeps it. With
-- `by_owner_only` the key that first took a mailbox keeps it; else it is any key's while it is not connected. Returns
-- the queue and the connection's number, or why it was refused: 'claimed' or 'displaced'.
declare
    box queues_mailbox%rowtype;
begin
    select queue_id into mailbox from queues_mailbox where name = named;
    if not found then
        insert into queues_queue (name, uuid, kind, max_attempts, retry_backoff, ack_timeout)
        values ('_peer/' || named, gen_random_uuid(), 'mailbox', 0, interval '0', null)
        on conflict (name) do nothing;
        insert into queues_mailbox (queue_id, name)
        select id, named from queues_queue where name = '_peer/' || named
        on conflict do nothing;
        select queue_id into strict mailbox from queues_mailbox where name = named;
    end if;
    perform pg_advisory_xact_lock(74659, mailbox);
    select * into strict box from queues_mailbox where queue_id = mailbox for update;
    if box.owner_id <> by_key and (by_owner_only or box.connection is not null) then
        refused := 'claimed';
        return;
    end if;
    if former is not null and box.connection <> former then
        refused := 'displaced';
        return;
    end if;
    perform queues_requeue_letters(mailbox);
    taken := nextval('queues_mailbox_connection');
    update queues_mailbox
    set owner_id = by_key, node_id = at_node, connection = taken, connected_at = clock_timestamp()
    where queue_id = mailbox;
    perform queues_instruct(
        array[json_build_object('mailbox', mailbox, 'connection', taken, 'node', at_node)::text], array[null::integer]);
    insert into queues_interest (queue_id, node_id) values (mailbox, at_node) on conflict do nothing;
    if found then
        perform pg_notify('fivewire', json_build_object('interest', json_build_array(mailbox), 'node', at_node)::text);
    end if;
end $$;

create function queues_empty_mailbox(mailbox integer, forget_owner boolean) returns boolean
language plpgsql volatile as $$
-- End the connection that has a mailbox, and with `forget_owner` let the next key that comes have the name. What was
-- delivered and not acknowledged is ready again. Returns whether it was connected.
declare
    box queues_mailbox%rowtype;
begin
    perform pg_advisory_xact_lock(74659, mailbox);
    select * into box from queues_mailbox where queue_id = mailbox for update;
    if not found then
        return false;
    end if;
    perform queues_requeue_letters(mailbox);
    update queues_mailbox
    set owner_id = case when not forget_owner then owner_id end, node_id = null, connection = null,
        left_at = case when connection is null then left_at else clock_timestamp() end
    where queue_id = mailbox;
    if box.connection is not null then
        perform queues_instruct(
            array[json_build_object('evicted', mailbox, 'connection', box.connection)::text], array[null::integer]);
        delete from queues_interest where queue_id = mailbox and node_id = box.node_id;
    end if;
    return box.connection is not null;
end $$;
