-- Give rows that came with a dump, from transactions that this database has yet to number, to the beginning of all.
-- How many there were.
with messages as (
    update queues_archivedmessage set xid = 0 where xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    returning 1
), segments as (
    update queues_archivedsegment set xid = 0 where xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    returning (select coalesce(sum(high - low + 1), 0) from unnest(lows, highs) as r (low, high)) as messages
)
select (select count(*) from messages) + (select coalesce(sum(messages), 0) from segments)::bigint
