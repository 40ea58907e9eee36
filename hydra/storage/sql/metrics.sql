-- Each node's name, its faults, its lines that were refused or lost, and whether a process holds its lock.
select n.name, n.faults, n.lines_refused, n.lines_lost, exists (
    select from pg_locks l
    where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid = %(lock_class)s::bigint::oid
        and l.objid = n.id::bigint::oid
        and l.database = (select oid from pg_database where datname = current_database())
)
from hydra_node n
order by n.name
