-- One JSON object: what the server, its settings and the tables of the broker say of themselves. Asks catalogs alone, so
-- that tables may be missing. A role without pg_monitor sees less of others: `sees_others` tells.
--   settings: by name those that `names` lists, as the session has them: value, unit-free number, where it is set
--   slots: of the connections that this role may have: the limit that applies first, and how many are taken
--   tables: those of the broker with more than `dead` dead rows and as many as live ones, or `bloat` bytes and more than
--     four times what their rows need by the statistics
--   retained: replication slots, and the bytes of WAL that they keep
select json_build_object(
    'role', current_user,
    'database', current_database(),
    'now', extract(epoch from clock_timestamp())::float8,
    'recovering', pg_is_in_recovery(),
    'backend', pg_backend_pid(),
    'encrypted', coalesce((select ssl from pg_stat_ssl where pid = pg_backend_pid()), false),
    'sees_others', pg_has_role(current_user, 'pg_read_all_stats', 'usage'),
    'search_path', current_setting('search_path'),
    'settings', (
        select json_object_agg(name, json_build_object('value', current_setting(name), 'raw', setting, 'source', source))
        from pg_settings where name = any(%(names)s)
    ),
    'slots', (
        select json_build_object('most', most, 'what', what, 'taken', taken) from (
            select current_setting('max_connections')::int
                    - current_setting('superuser_reserved_connections')::int
                    - coalesce(current_setting('reserved_connections', true), '0')::int as most,
                'max_connections less what is reserved' as what,
                (select count(*) from pg_stat_activity where backend_type in ('client backend', 'walsender')) as taken
            union all
            select rolconnlimit, 'the limit of the role ' || rolname,
                (select count(*) from pg_stat_activity where usename = rolname and backend_type = 'client backend')
            from pg_roles where rolname = current_user and rolconnlimit >= 0
            union all
            select datconnlimit, 'the limit of the database ' || datname,
                (select count(*) from pg_stat_activity a where a.datid = d.oid and backend_type = 'client backend')
            from pg_database d where datname = current_database() and datconnlimit >= 0
        ) as limits order by most - taken limit 1
    ),
    'schemas', (
        select coalesce(json_agg(n.nspname order by n.nspname), '[]') from pg_class c
            join pg_namespace n on n.oid = c.relnamespace where c.relname = 'queues_topology' and c.relkind = 'r'
    ),
    'schema', (
        select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.oid = to_regclass('queues_topology')
    ),
    'open_schemas', (
        select coalesce(json_agg(n.nspname), '[]') from pg_namespace n
        where n.nspname = any(current_schemas(false)) and exists (
            select from aclexplode(n.nspacl) as a where a.grantee = 0 and a.privilege_type = 'CREATE'
        )
    ),
    'not_vacuumed', (
        select coalesce(json_agg(c.oid::regclass::text order by c.relname), '[]') from pg_class c
        where c.relkind = 'r' and c.relname ~ '^(queues|hydra)_'
            and c.reloptions && '{autovacuum_enabled=false,autovacuum_enabled=off}'
            and c.relname !~ '_[123]$' -- tables that take turns are truncated, and have nothing to vacuum
    ),
    'tables', (
        select coalesce(json_agg(t order by t.bytes desc), '[]') from (
            select s.relid::regclass::text as name, s.n_dead_tup as dead, s.n_live_tup as live,
                pg_relation_size(s.relid) as bytes, w.needed::bigint as needed,
                s.n_dead_tup > %(dead)s and s.n_dead_tup > s.n_live_tup as unclean
            from pg_stat_user_tables s join pg_class c on c.oid = s.relid
            cross join lateral (
                select greatest(c.reltuples, 0) * (28 + coalesce(sum(avg_width * (1 - null_frac)), 0)) as needed
                from pg_stats p where p.schemaname = s.schemaname and p.tablename = s.relname
            ) as w
            where s.relname ~ '^(queues|hydra)_' and (
                s.n_dead_tup > %(dead)s and s.n_dead_tup > s.n_live_tup
                or pg_relation_size(s.relid) > %(bloat)s and c.reltuples >= 0
                    and pg_relation_size(s.relid) > 4 * w.needed
            )
        ) as t
    ),
    'retained', (
        select coalesce(json_agg(json_build_object('name', slot_name, 'active', active, 'bytes', bytes)), '[]') from (
            select slot_name, active, pg_wal_lsn_diff(
                case when pg_is_in_recovery() then pg_last_wal_receive_lsn() else pg_current_wal_lsn() end, restart_lsn
            )::bigint as bytes
            from pg_replication_slots
        ) as kept where bytes > %(kept)s
    ),
    'synchronous', (
        select count(*) from pg_stat_replication where sync_state is null or sync_state in ('sync', 'quorum')
    )
)
