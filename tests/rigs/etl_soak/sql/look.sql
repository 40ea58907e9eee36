-- The open transactions of runs, and whether they hold a snapshot or one of the hot table.
select extract(epoch from clock_timestamp() - xact_start)::float8, backend_xmin is not null,
    query ~ 'queues_(open)?message\M' and query !~ 'queues_archive\M', left(query, 200)
from pg_stat_activity
where application_name = %(session)s and datname = current_database() and xact_start is not null
