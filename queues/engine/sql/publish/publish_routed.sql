-- Store messages in the caller's transaction, which may not be the engine's own. The caller tells nodes after the
-- commit what became ready: a commit that waits for the disk is not to notify too, since those that do wait for each
-- other. Routes as resolve.sql does, by what the statement sees. It takes no lock that a publish of the engine waits
-- for: a shared lock on the rows of the target queues only keeps them from being deleted until commit. With `exact`,
-- which is for transactions that end at once, it also locks the counts of queues with a maximum length, as admit.sql
-- does. What goes by routes is tallied for each of them. A message whose key is taken in a queue is left out there;
-- when a queue that rejects is full nothing is stored. What is stored in an audited queue is noted in the journal: the
-- transaction may be long. One row: whether the addressed queue exists, the queues reached, the names of those that are
-- full, the queues that may have to drop their oldest, for each message the lowest id stored for it or null, the queues
-- in which messages became ready with the first position in each, as a JSON object, and how many instructions there
-- are.
with recursive reached as (
    select %(kind)s::text as kind, %(name)s::text as name, null::bigint as route_id
    union
    select split_part(target, ':', 1), substr(target, strpos(target, ':') + 1), queues_route.id
    from reached join queues_route on source = kind || ':' || reached.name
), found as (
    select q.id as queue_id, null::smallint as qos
    from reached join queues_queue q on q.name = case reached.kind when 'queue' then reached.name
        when 'peer' then '_peer/' || reached.name end
    union
    select s.queue_id, s.qos
    from reached join queues_subscription s on reached.kind = 'topic' and s.topic = convert_to(reached.name, 'UTF8')
), target as materialized (
    select id as queue_id, name, extract(epoch from message_ttl)::float8 as message_ttl, max_length, overflow, audited
    from queues_queue where id in (select queue_id from found where qos is distinct from 0)
    order by id for key share
), addressed as materialized (
    -- A target that was deleted while the statement waited for its row is left out.
    select 1 where %(kind)s = 'topic' or exists (select from target where name = %(name)s)
), locked as materialized (
    select queue_id from queues_queuecount
    where %(exact)s::bool and queue_id in (select queue_id from target where max_length is not null)
    order by queue_id for update
), full_queue as materialized (
    select name from target
    where (select count(*) from locked) >= 0 and max_length is not null and overflow = 'reject'
        and queues_room(queue_id) < cardinality(%(bodies)s::bytea[])
), body as materialized (
    select * from unnest(
        %(bodies)s::bytea[], %(keys)s::text[], %(headers)s::text[], %(delays)s::float8[], %(ttls)s::float8[],
        %(attempts)s::smallint[], %(priorities)s::smallint[], %(contents)s::smallint[]
    ) with ordinality as b (payload, key, headers, delay, ttl, max_attempts, priority, content, n)
    where exists (select from addressed) and not exists (select from full_queue)
), carried as (
    insert into queues_routetally (route_id, carried)
    select route_id, (select count(*) from body) from (select distinct route_id from reached) as passed
    where route_id is not null and exists (select from body)
), given as materialized (
    select body.*, queue_id, message_ttl, row_number() over (order by n, queue_id) - 1 as nth
    from body, target
), block as materialized (
    select array_agg(first) as firsts
    from (select nextval('queues_message_id') as first
        from generate_series(0, (select (count(*) - 1) / 4096 from given having count(*) > 0))) as b
), placed as materialized (
    select n, queue_id, firsts[nth / 4096 + 1] + nth %% 4096 as place, priority, null::int as node_id,
        null::bigint as producer_id, statement_timestamp() as published_at, max_attempts,
        case when delay > 0 then statement_timestamp() + make_interval(secs => delay) end as due_at,
        statement_timestamp() + make_interval(secs => delay + coalesce(ttl, message_ttl)) as expires_at, key,
        headers::jsonb, payload, null::bigint as origin_id, content, null::int as retry_interval
    from given, block
),
\ir ../parts/stored.sql
, journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select 'queue:' || name, 'publish', id::text, '', name from stored join target using (queue_id)
    where audited order by position
), passed_on as materialized (
    -- QoS 0 subscriptions get it in memory, from the node that serves them.
    select queues_instruct(array_agg(json_build_object('transient', queue_id, 'node', node_id,
        'body', replace(encode(payload, 'base64'), E'\n', ''))::text order by n), array_agg(node_id order by n))
    from body, (select queue_id, min(node_id) as node_id from queues_interest
        where queue_id in (select queue_id from found where qos = 0) group by queue_id) as serving
    where length(payload) <= 5600
    having count(*) > 0
)
select exists (select from addressed),
    (select array_agg(queue_id order by queue_id) from target),
    (select array_agg(name::text order by name) from full_queue),
    (select array_agg(queue_id order by queue_id) from target where max_length is not null and overflow <> 'reject'),
    (select array_agg(id order by n)
        from (select n, min(stored.id) as id from placed left join stored on id = place group by n) as by_message),
    (select json_object_agg(queue_id, first)
        from (select queue_id, min(position) as first from stored where state = 0 group by queue_id) as ready),
    (select count(*) from passed_on)
