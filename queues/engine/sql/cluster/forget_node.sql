-- Delete a node. Unless it leaves by itself, it is noted as dead; what was noted more than a day ago is dropped.
with gone as (
    delete from queues_node where id = %(node)s returning id, name, host, pid, started_at, engine
), dropped as (
    delete from queues_deadnode where died_at < now() - interval '1 day'
)
insert into queues_deadnode (id, name, host, pid, started_at, engine)
select id, name, host, pid, started_at, engine from gone where not %(leaves)s::bool
on conflict (id) do nothing
