-- Messages leave the store without an acknowledgement: as in finish.sql, by their queues' retention. Each of an audited
-- queue is journaled as `cause` says: its event, by whom (null: the queue), and whether the chain of operators has it
-- too.
finished as materialized (
    select gone.*, coalesce(origin_id, gone.id) as first_id, name, audited,
        case when retention <> 'none' then 1 else 0 end as kept, null::bigint as consumer_id,
        null::timestamptz as delivered_at, null::bool as job, null::bytea as result
    from gone join queues_queue q on q.id = queue_id and q.id = any(array(select queue_id from gone))
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select chain, (select event from cause), record_id, coalesce((select by from cause), name), recipient
    from (
        select id, name, 'queue:' || name as chain, first_id::text as record_id, '' as recipient
        from finished where audited
        union all
        select id, name, 'operators', 'message:' || first_id, name from finished where (select named from cause)
    ) as told
    order by id
),
\ir finish.sql
