-- A queue by its name: id, whether it is temporary, whether it goes with its last consumer, messages that wait in it,
-- sessions that consume from it if it is temporary, and whether it is exclusive to another session. No row for a peer's
-- mailbox.
select q.id, t.queue_id is not null, coalesce(t.auto_delete, false), (select ready from queues_held(q.id)),
    (select count(*) from pg_locks where t.queue_id is not null and locktype = 'advisory' and granted and objsubid = 2
        and classid = %(lock_class)s::bigint::oid and objid = q.id::bigint::oid
        and database = (select oid from pg_database where datname = current_database())),
    exists (select from pg_locks where t.queue_id is not null and locktype = 'advisory' and granted and objsubid = 2
        and classid = %(owner_class)s::bigint::oid and objid = q.id::bigint::oid and pid <> pg_backend_pid()
        and database = (select oid from pg_database where datname = current_database()))
from queues_queue q left join queues_temporaryqueue t on t.queue_id = q.id
where q.name = %(name)s and q.kind <> 'mailbox'
