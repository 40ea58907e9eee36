drop index queues_archive_xid;
alter table queues_archive drop column xid;
