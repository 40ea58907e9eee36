-- One row: nodes, workers, peers that are connected; connections of clients, and of the database; its commits so far;
-- standbys and the longest lag of one in seconds; the names of nodes that began within `minutes` and
-- died, but for those whose engine lives as another node;
-- what holds back vacuum for longer than so many seconds or transactions, as JSON; the time of the last sample; the
-- oldest transaction that is under way, and what differs once queues or nodes' interests in them come or go: how many
-- there are, the last interest. By these two the next look at the queues reads those that have changed.
select (select count(*) from queues_node), (select count(*) from queues_worker),
    (select count(*) from queues_mailbox where node_id is not null),
    (select coalesce(sum(connections), 0)::int from queues_connectiontotal),
    (select count(*) from pg_stat_activity where datname = current_database()),
    (select xact_commit from pg_stat_database where datname = current_database()),
    (select count(*) from pg_stat_replication),
    (select extract(epoch from max(replay_lag))::float8 from pg_stat_replication),
    array(
        select name from queues_deadnode d where started_at > now() - make_interval(mins => %(minutes)s)
            and not exists (select from queues_node n where n.engine = d.engine)
        order by died_at desc
    ),
    (select coalesce(json_agg(h order by h.xids desc), '[]') from (
        select 'backend' as kind, pid::text as name, extract(epoch from backend_start)::text as started,
            coalesce(usename, '') as user, application_name as application, left(query, 300) as query,
            coalesce(state, '') as state, extract(epoch from clock_timestamp() - xact_start)::float8 as seconds,
            greatest(age(backend_xmin), age(backend_xid)) as xids
        from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and backend_type <> 'autovacuum worker'
            and (backend_xmin is not null or backend_xid is not null)
            and (xact_start < clock_timestamp() - make_interval(secs => %(seconds)s)
                or greatest(age(backend_xmin), age(backend_xid)) > %(xids)s)
        union all
        select 'prepared', gid, '', owner, '', '', 'prepared',
            extract(epoch from clock_timestamp() - prepared)::float8, age(transaction)
        from pg_prepared_xacts
        where database = current_database() and prepared < clock_timestamp() - make_interval(secs => %(seconds)s)
        union all
        select 'slot', slot_name, '', '', coalesce(plugin, ''), '', case when active then 'active' else 'inactive' end,
            null, greatest(age(xmin), age(catalog_xmin))
        from pg_replication_slots where greatest(age(xmin), age(catalog_xmin)) > %(xids)s
    ) as h),
    (select extract(epoch from at)::float8 from queues_samplemark where queue = 0),
    pg_snapshot_xmin(pg_current_snapshot())::text,
    array[(select count(*) from queues_queue), (select count(*) from queues_interest),
        (select max(id) from queues_interest)]
