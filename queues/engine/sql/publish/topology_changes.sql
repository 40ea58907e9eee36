-- The addresses that may lead elsewhere since a version of the topology, through routes too. One row at least: the
-- version now, whether it is all addresses, and an address or null.
with recursive topology as materialized (
    select coalesce((select version from queues_topology), 0) as version
), change as materialized (
    select c.version, kind, name, queue_id from queues_topologychange c where c.version > %(since)s::bigint
), everything as materialized (
    select topology.version <> %(since)s::bigint and (topology.version < %(since)s::bigint
        or coalesce((select min(version) from change), topology.version + 1) > %(since)s::bigint + 1
        or exists (select from change where kind is null) or (select count(*) from change) > 5000) as all
    from topology
), moved as materialized (
    select kind, name from change
    union
    select 'peer', substr(name, 7) from change where kind = 'queue' and substr(name, 1, 6) = '_peer/'
    union
    select 'topic', topic from queues_subscription where queue_id = any(array(select queue_id from change))
), reached as (
    select kind, name,
        case when position('\x00'::bytea in name) = 0 then convert_from(name, 'UTF8') collate "default" end as text
    from moved where not (select everything.all from everything)
    union
    select split_part(source, ':', 1), convert_to(substr(source, strpos(source, ':') + 1), 'UTF8'),
        substr(source, strpos(source, ':') + 1)
    from reached join queues_route on target = kind || ':' || reached.text
)
select version, everything.all, kind, name from topology, everything left join reached on true
