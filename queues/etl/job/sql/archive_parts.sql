-- The archive's partitions: name, pages, and the name of the index of transactions.
select p.oid::regclass::text, (pg_relation_size(p.oid) / current_setting('block_size')::int)::bigint,
    (select x.indexrelid::regclass::text from pg_index x join pg_inherits h on h.inhrelid = x.indexrelid
        where x.indrelid = p.oid and h.inhparent = 'queues_archive_xid'::regclass)
from pg_inherits i join pg_class p on p.oid = i.inhrelid
where i.inhparent = 'queues_archivedmessage'::regclass
order by p.relname
