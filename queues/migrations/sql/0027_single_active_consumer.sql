-- Consumers of queues with a single active one. Unlogged: the server's crash ends every connection of every node, and they
-- come anew. Rows vanish with their node and queue.
alter table queues_consumer
    add constraint queues_consumer_queue foreign key (queue_id) references queues_queue (id) on delete cascade;
alter table queues_consumer
    add constraint queues_consumer_node foreign key (node_id) references queues_node (id) on delete cascade;
alter table queues_consumer set unlogged;

create function queues_lock_lines(queues integer[]) returns void
language plpgsql volatile as $$
-- No other transaction changes the consumers of these queues, as for mailboxes, until the calling one ends. In order, so
-- that no two transactions wait for each other.
begin
    perform pg_advisory_xact_lock(74659, queue) from (select distinct unnest(queues) as queue order by 1) as ordered;
end $$;

create function queues_elect_consumers(queues integer[]) returns void
language plpgsql volatile as $$
-- Of each queue without an active consumer make the one active that came first, and tell the nodes. The queues are locked.
declare
    elected integer[];
begin
    with changed as (
        update queues_consumer set active = true, active_since = clock_timestamp()
        where id in (
            select min(id) from queues_consumer where queue_id = any(queues) group by queue_id having not bool_or(active)
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
-- Consumers of a node, all of them if `numbers` is null, have ended, and what they had is settled or ready again: the next
-- ones are active.
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
