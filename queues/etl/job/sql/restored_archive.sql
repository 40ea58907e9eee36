-- Give rows that came with a dump, from transactions that this database has yet to number, to the beginning of all.
update queues_archivedmessage set xid = 0 where xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
