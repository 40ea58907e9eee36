create or replace function queues_rotate_segments(turn integer) returns boolean
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
