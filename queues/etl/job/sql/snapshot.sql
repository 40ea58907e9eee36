-- The snapshot that ends this run's window, and when and where it was taken.
select pg_current_snapshot()::text, clock_timestamp(), (select system_identifier::text from pg_control_system()),
    (select oid::text from pg_database where datname = current_database())
