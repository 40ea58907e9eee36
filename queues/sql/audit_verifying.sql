-- The progress of processes that verify chains of this database, each in the name of its session.
select application_name from pg_stat_activity
where datname = current_database() and application_name like 'fivewire verify %%'
