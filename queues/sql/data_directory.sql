-- The directory of the server's data; no row for a role without pg_read_all_settings.
select setting from pg_settings where name = 'data_directory'
