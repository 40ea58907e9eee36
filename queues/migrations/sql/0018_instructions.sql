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

create or replace function queues_take_mailbox(
    named text, by_key bigint, at_node integer, by_owner_only boolean, former bigint,
    out mailbox integer, out taken bigint, out refused text
) language plpgsql volatile as $$
-- Give a mailbox, made if need be, to a new connection of a node. `former` is the number of the connection if it had the
-- mailbox until its node lost the database: then a connection that took it meanwhile keeps it.
-- With `by_owner_only` the key that first took a mailbox keeps it; else it is any key's while it is not connected.
-- Returns the queue and the connection's number, or why it was refused: 'claimed' or 'displaced'.
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
    perform queues_instruct(array[json_build_object('mailbox', mailbox, 'connection', taken, 'node', at_node)::text], array[null::integer]);
    insert into queues_interest (queue_id, node_id) values (mailbox, at_node) on conflict do nothing;
    if found then
        perform pg_notify('fivewire', json_build_object('interest', json_build_array(mailbox), 'node', at_node)::text);
    end if;
end $$;

create or replace function queues_empty_mailbox(mailbox integer, forget_owner boolean) returns boolean
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
        perform queues_instruct(array[json_build_object('evicted', mailbox, 'connection', box.connection)::text], array[null::integer]);
        delete from queues_interest where queue_id = mailbox and node_id = box.node_id;
    end if;
    return box.connection is not null;
end $$;
