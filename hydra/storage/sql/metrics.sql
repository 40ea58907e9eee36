-- Each node's name, its faults, and whether a process holds its lock.
select n.name, n.faults, exists (
    select from pg_locks l
    where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid = %(lock_class)s::bigint::oid
        and l.objid = n.id::bigint::oid
        and l.database = (select oid from pg_database where datname = current_database())
)
from hydra_node n
order by n.name
