drop function queues_truncate(text[], timestamptz);
drop function queues_wait_at_most(double precision);
drop function queues_deadlock_timeout();

create or replace function queues_lock_slot(tables text[]) returns boolean
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
    set local lock_timeout = '100ms';
    execute format('lock table %s in share mode', array_to_string(tables, ', '));
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;

create function queues_truncate(tables text[]) returns boolean
language plpgsql as $$
-- Truncate tables; false: they are used.
begin
    execute format('truncate %s', array_to_string(tables, ', '));
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;

create or replace function queues_rotate_segments(turn integer) returns boolean
language plpgsql set enable_seqscan = on as $$
-- Truncate the segments of a slot whose turn is over, their bodies, and what is settled of them; false: some are open,
-- or they are used.
declare
    tables constant text[] := array[format('queues_segment_%s', turn), format('queues_segmentsettlement_%s', turn),
        format('queues_segmentbody_%s', turn)];
begin
    -- Not by their rows: those that were moved may have left room that is not used again.
    if (select sum(pg_relation_size(name::regclass)) from unnest(tables) as name) = 0 then
        return true;
    end if;
    if not queues_lock_slot(tables) then
        return false;
    end if;
    -- By itself: a table cannot be truncated within a query that reads it.
    if exists (select from queues_opensegment where slot = turn) then
        return false;
    end if;
    return queues_truncate(tables);
end $$;

create or replace function queues_rotate_tallies(turn integer) returns boolean
language plpgsql set enable_seqscan = on as $$
-- Add the tallies of a slot whose turn is over to the queues' counts, and truncate them; false: they are used.
declare
    tables constant text[] := array[format('queues_queuetally_%s', turn)];
begin
    if pg_relation_size(tables[1]::regclass) = 0 then
        return true;
    end if;
    if not queues_lock_slot(tables) then
        return false;
    end if;
    insert into queues_queuecount as c (queue_id, ready, leased, delayed, dead, published, settled, completed)
    select queue_id, sum(t.ready), sum(t.leased), sum(t.delayed), sum(t.dead), sum(published), sum(settled), sum(completed)
    from queues_queuetally t join queues_queue q on q.id = queue_id where slot = turn group by queue_id order by queue_id
    on conflict (queue_id) do update set ready = c.ready + excluded.ready, leased = c.leased + excluded.leased,
        delayed = c.delayed + excluded.delayed, dead = c.dead + excluded.dead,
        published = c.published + excluded.published, settled = c.settled + excluded.settled,
        completed = c.completed + excluded.completed;
    if not queues_truncate(tables) then
        raise lock_not_available;
    end if;
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end $$;
