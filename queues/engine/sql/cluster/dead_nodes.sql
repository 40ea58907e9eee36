-- Nodes whose advisory lock is free: their sessions have ended, and so have they. Also those that have left segments
-- behind: a node of a version that knows none may have returned their leases.
select id from (select id from queues_node union select node_id from queues_segment where slot = 0) as n
where not exists (
    select from pg_locks l
    where l.locktype = 'advisory' and l.granted and l.objsubid = 2
        and l.database = (select oid from pg_database where datname = current_database())
        and l.classid = %(lock_class)s::bigint::oid and l.objid = n.id::bigint::oid)
