-- What operators did to a queue (null: to any) since a Unix time, and which nodes died: when, what, to what, by whom.
-- The newest so many of each, oldest first.
select extract(epoch from at)::float8, event, record_id, sender from (
    (select r.at, r.event, r.record_id, r.sender from queues_audit r
    where r.chain_id = (select id from queues_auditchain where name = 'operators')
        and r.at >= to_timestamp(%(start)s::float8) and r.event = any(%(events)s::text[])
        and (r.record_id = 'queue:' || %(queue)s::text or (%(queue)s::text is null and r.record_id like 'queue:%%'))
    order by r.seq desc limit %(most)s)
    union all
    (select created_at, action, coalesce(criteria ->> 'queue', 'any queue') || case target when '' then '' else ' to '
        || target end, by
    from queues_bulkoperation where created_at >= to_timestamp(%(start)s::float8)
        and (%(queue)s::text is null or criteria ->> 'queue' = %(queue)s::text or target = %(queue)s::text)
    order by id desc limit %(most)s)
    union all
    (select died_at, 'node died', name || ' on ' || host, '' from queues_deadnode
    where died_at >= to_timestamp(%(start)s::float8) order by died_at desc limit %(most)s)
) as happened
order by at
