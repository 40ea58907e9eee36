-- The archive's partitions: name, pages, the name of the index of transactions, whether they have segments.
select p.oid::regclass::text, (pg_relation_size(p.oid) / current_setting('block_size')::int)::bigint,
    (select x.indexrelid::regclass::text from pg_index x join pg_inherits h on h.inhrelid = x.indexrelid
        where x.indrelid = p.oid
            and h.inhparent in ('queues_archive_xid'::regclass, 'queues_archivedsegment_xid'::regclass)),
    i.inhparent = 'queues_archivedsegment'::regclass
from pg_inherits i join pg_class p on p.oid = i.inhrelid
where i.inhparent in ('queues_archivedmessage'::regclass, 'queues_archivedsegment'::regclass)
order by p.relname
