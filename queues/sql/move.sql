-- Move the oldest messages of a queue in one state to the tail of a queue, which may be the same; with `ids` only
-- those. Messages with an id above `high`, without the priority in its highest byte, stay. Dead letters become ready
-- with no attempts; delayed ones keep their time, or with `now` become ready. With `home` they come out of a
-- dead-letter queue: with no attempts either, without the header that says so, and with the key that stands there. A
-- key that is taken in the target is left behind. What nodes are about to change stays. In the chains of audited queues
-- each is recorded as `event`, `by` whom; with `named` so it is in the chain of operators. One row: how many, lowest id
-- made ready.
with block as materialized (
    select nextval('queues_message_id') as first
), picked as materialized (
    select id, case when %(home)s then coalesce(headers -> 'dead-letter' ->> 'key', key) else key end as key
    from queues_message
    where queue_id = %(source)s and state = %(state)s and (id & 72057594037927935) <= %(high)s
        and (%(ids)s::bigint[] is null or id = any(%(ids)s::bigint[]))
    order by id limit %(limit)s for update skip locked
), numbered as materialized (
    select id, key, row_number() over (order by id) - 1 as n, row_number() over (partition by key order by id) as nth
    from picked
), moved as (
    update queues_message m set
        id = first + n + ((m.id >> 56) << 56), queue_id = %(target)s, origin_id = coalesce(origin_id, m.id),
        tag = null, dead_at = null,
        state = case when state = 2 and not %(now)s then 2 else 0 end,
        due_at = case when not %(now)s then due_at end,
        attempts = case when state = 3 or %(home)s then 0 else attempts end,
        headers = case when %(home)s then nullif(headers - 'dead-letter', '{}') else headers end,
        expires_at = coalesce(expires_at, now() + q.message_ttl),
        -- With a limit, so that it is an index probe a message whatever the statistics say, never a hash of the target.
        key = case when %(source)s = %(target)s or (nth = 1 and (
            select true from queues_message k where k.queue_id = %(target)s and k.key = numbered.key limit 1) is null)
            then numbered.key end
    from numbered, block, queues_queue q
    where m.id = numbered.id and q.id = %(target)s
    returning m.id, m.state, m.origin_id as first_id
), counted as (
    select count(*) as gone, count(*) filter (where state = 0) as ready, count(*) filter (where state = 2) as delayed,
        case when %(source)s <> %(target)s then count(*) else 0 end as changed
    from moved
), left_source as (
    insert into queues_queuetally (queue_id, ready, delayed, dead, settled)
    select %(source)s, case when %(state)s = 0 then -gone else 0 end, case when %(state)s = 2 then -gone else 0 end,
        case when %(state)s = 3 then -gone else 0 end, changed
    from counted where gone > 0
), arrived as (
    insert into queues_queuetally (queue_id, ready, delayed, published)
    select %(target)s, ready, delayed, changed from counted where gone > 0
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select chain, %(event)s, record_id, %(by)s, (select name from queues_queue where id = %(target)s)
    from (select moved.id, 'queue:' || name as chain, first_id::text as record_id
        from moved, queues_queue q where q.id in (%(source)s, %(target)s) and audited
        union all select id, 'operators', 'message:' || first_id from moved
            where %(named)s) as told
    order by id, chain
)
select (select gone from counted), min(id) filter (where state = 0) from moved
