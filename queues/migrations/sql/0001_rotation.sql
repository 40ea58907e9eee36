-- Emptying of the tables that take turns (slots 1 to 3 of segments and tallies).
--
-- PostgreSQL ends a transaction whose look finds a deadlock, and each looks when it has waited for
-- `deadlock_timeout`. What had waited that long for a rotation's lock, while the rotation waited itself, would be
-- ended in its place: publishes of Django, and what operators do. So a rotation waits for nothing once others may
-- look, and its lock lasts for a count of rows and not for a search for open segments.

create function queues_deadlock_timeout() returns double precision
language sql stable as $$
-- Milliseconds for which a transaction waits before it looks for a deadlock.
    select (extract(epoch from current_setting('deadlock_timeout')::interval) * 1000)::double precision
$$;

create function queues_wait_at_most(share double precision) returns void
language plpgsql as $$
-- Wait for a lock for at most this share of that time, or of a second, from now on in this transaction.
begin
    perform set_config('lock_timeout', ceil(least(1000, queues_deadlock_timeout()) * share)::text, true);
end $$;

create function queues_lock_slot(tables text[]) returns boolean
language plpgsql as $$
-- Keep others from adding to these tables whose turn is over; false: they are used. Reading goes on. Others queue up
-- behind the truncation that follows, so that transactions which last are not waited for.
begin
    if not pg_try_advisory_xact_lock(hashtext('queues_rotate')) or exists (
        select from pg_locks l join pg_stat_activity a using (pid)
        where l.locktype = 'relation' and l.granted and a.xact_start < now() - interval '0.5 s'
            and l.relation = any(tables::regclass[])
            and l.database = (select oid from pg_database where datname = current_database())
    ) then
        return false;
    end if;
    perform queues_wait_at_most(0.1);
    execute format('lock table %s in share mode', array_to_string(tables, ', '));
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;

create function queues_truncate(tables text[], since timestamptz) returns boolean
language plpgsql as $$
-- Truncate tables that are locked since a time; false: they are used. A transaction that waits for that lock is ended
-- if it looks for a deadlock while this waits for it. So the waits, each a tenth of the time until it looks at most,
-- begin within half of that time, and later on the tables are truncated if they are not used at that moment.
begin
    if extract(epoch from clock_timestamp() - since) * 1000 > queues_deadlock_timeout() / 2 then
        execute format('lock table %s in access exclusive mode nowait', array_to_string(tables, ', '));
    end if;
    perform queues_wait_at_most(0.1);
    execute format('truncate %s', array_to_string(tables, ', '));
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;

create function queues_rotate_segments(turn integer) returns boolean
language plpgsql set enable_seqscan = on as $$
-- Truncate the segments of a slot whose turn is over, their bodies, and what is settled of them; false: some are open,
-- or they are used.
declare
    tables constant text[] := array[format('queues_segment_%s', turn), format('queues_segmentsettlement_%s', turn),
        format('queues_segmentbody_%s', turn)];
    closed numeric[];
    locked numeric[];
    since timestamptz;
begin
    -- Not by their rows: those that were moved may have left room that is not used again.
    if (select sum(pg_relation_size(name::regclass)) from unnest(tables) as name) = 0 then
        return true;
    end if;
    -- Searched before the lock, since that takes longer than to count. What is settled stays so: if the rows are the
    -- same under the lock, none of them is open. That they are is told from a sum of hashes: one of ids is the same for
    -- other rows, too.
    select array[count(*), sum(hashint8extended(first, 0))] into closed from queues_segment where slot = turn
    having not exists (select from queues_opensegment where slot = turn);
    if closed is null then
        return false;
    end if;
    since := clock_timestamp();
    if not queues_lock_slot(tables) then
        return false;
    end if;
    -- By itself: a table cannot be truncated within a query that reads it.
    select array[count(*), sum(hashint8extended(first, 0))] into locked from queues_segment where slot = turn;
    if locked is distinct from closed then
        return false;
    end if;
    return queues_truncate(tables, since);
end $$;

create function queues_rotate_tallies(turn integer) returns boolean
language plpgsql set enable_seqscan = on as $$
-- Add the tallies of a slot whose turn is over to the queues' counts, and truncate them; false: they, or the counts,
-- are used.
declare
    tables constant text[] := array[format('queues_queuetally_%s', turn)];
    since constant timestamptz := clock_timestamp();
    queues bigint[];
begin
    if pg_relation_size(tables[1]::regclass) = 0 then
        return true;
    end if;
    if not queues_lock_slot(tables) then
        return false;
    end if;
    -- What deletes a queue has its count locked, and waits for the tallies. A publish to a queue with a maximum length
    -- has it locked, too, and is about to commit.
    queues := array(select distinct queue_id from queues_queuetally where slot = turn);
    if extract(epoch from clock_timestamp() - since) * 1000 > queues_deadlock_timeout() / 2 then
        return false;
    end if;
    perform queues_wait_at_most(0.02);
    perform from queues_queuecount where queue_id = any(queues) order by queue_id for update;
    insert into queues_queuecount as c (queue_id, ready, leased, delayed, dead, published, settled, completed)
    select queue_id, sum(t.ready), sum(t.leased), sum(t.delayed), sum(t.dead), sum(published), sum(settled),
        sum(completed)
    from queues_queuetally t join queues_queue q on q.id = queue_id where slot = turn
    group by queue_id order by queue_id
    on conflict (queue_id) do update set ready = c.ready + excluded.ready, leased = c.leased + excluded.leased,
        delayed = c.delayed + excluded.delayed, dead = c.dead + excluded.dead,
        published = c.published + excluded.published, settled = c.settled + excluded.settled,
        completed = c.completed + excluded.completed;
    if not queues_truncate(tables, since) then
        raise lock_not_available;
    end if;
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;
