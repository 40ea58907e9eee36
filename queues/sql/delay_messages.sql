-- Delay these messages of a queue that are ready or delayed, at most 4096, from now on; they go to the tail. What nodes
-- are about to change stays. In the chain of an audited queue each is recorded as `delay`, `by` whom; with `named` in
-- that of operators, too. Returns how many.
with block as materialized (
    select nextval('queues_message_id') as first
), picked as materialized (
    select id, state from queues_message
    where queue_id = %(queue)s and id = any(%(ids)s::bigint[]) and state in (0, 2)
    order by id for update skip locked
), numbered as materialized (
    select id, state, row_number() over (order by id) - 1 as n from picked
), delayed as (
    update queues_message m set id = first + n + ((m.id >> 56) << 56), origin_id = coalesce(origin_id, m.id), state = 2,
        due_at = now() + make_interval(secs => %(delay)s)
    from numbered, block where m.id = numbered.id
    returning m.id, m.origin_id as first_id, numbered.state as before
), tallied as (
    insert into queues_queuetally (queue_id, ready, delayed)
    select %(queue)s, -count(*), count(*) from delayed where before = 0 having count(*) > 0
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select chain, 'delay', record_id, %(by)s, recipient
    from (select delayed.id, 'queue:' || name as chain, first_id::text as record_id, '' as recipient
        from delayed, queues_queue q where q.id = %(queue)s and audited
        union all select delayed.id, 'operators', 'message:' || first_id, name
            from delayed, queues_queue q where q.id = %(queue)s and %(named)s) as told
    order by id, chain
)
select count(*) from delayed
