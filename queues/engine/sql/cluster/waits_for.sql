-- Wait events of these sessions and of those whose locks they wait for, however far: the name of the event for
-- replication, else its kind. One row a session that waits.
with recursive waiting (pid) as (
    select unnest(%(pids)s::int[])
    union
    select unnest(pg_blocking_pids(pid)) from waiting
)
select case when wait_event = 'SyncRep' then wait_event else wait_event_type end as kind
from pg_stat_activity
where pid = any(array(select pid from waiting)) and state = 'active' and wait_event is not null
