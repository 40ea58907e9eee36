"""PostgreSQL's servers: connection parameters, hosts, files of SQL, prepared statements."""
