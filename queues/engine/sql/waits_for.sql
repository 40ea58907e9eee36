-- Wait events of these sessions: the name of the event for replication, else its kind. One row a session that waits.
select case when wait_event = 'SyncRep' then wait_event else wait_event_type end as kind
from pg_stat_activity where pid = any(%(pids)s) and state = 'active' and wait_event is not null
