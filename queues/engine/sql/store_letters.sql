-- Store letters, in order: each for its recipient if that is known, a broadcast (to '') for everyone who is connected but
-- its sender. Nothing is stored of a letter whose id was seen before, nor of one whose sender has lost its mailbox.
-- The common values of a sender's letters are given once; `payloads` has all, one behind the other.
-- `locals` are mailboxes connected to this node that want letters now: up to `rooms` letters, and while they have less than
-- `byte_rooms`, they are leased to their connection, if nothing older is ready.
-- One row a letter and recipient: position, id, queue, whether it was leased, of a broadcast the recipient, and the
-- recipient's node.
with sender as materialized (
    select queue_id as sender, producer_id, headers::jsonb from unnest(
        %(mailboxes)s::int[], %(connections)s::bigint[], %(producers)s::bigint[], %(headers)s::text[]
    ) as s (queue_id, connection, producer_id, headers)
    where pg_current_xact_id() is not null and queues_may_lease(%(node)s) and queues_holds_mailbox(queue_id, connection)
), given as materialized (
    select g.*, convert_to(key, 'UTF8') as id, producer_id, headers from unnest(
        %(senders)s::int[], %(recipients)s::text[], %(keys)s::text[], %(starts)s::int[], %(sizes)s::int[]
    ) with ordinality as g (sender, recipient, key, start, size, n) join sender using (sender)
), known as materialized (
    select queue_id, name, node_id from queues_mailbox where name = any(%(recipients)s::text[])
), live as materialized (
    select queue_id, name, node_id from queues_mailbox where %(broadcasts)s::bool and node_id is not null
), wanted as materialized (
    select n, id, known.queue_id, node_id, key, null::text as copy_of
    from given join known on name = recipient
    union all
    select n, id, live.queue_id, node_id, key || '|' || name, name
    from given, live where recipient = '' and live.queue_id <> sender
), once as materialized (
    select min(n) as n, id
    from (select n, id from wanted union all select n, id from given where recipient = '') as every group by id
), fresh as (
    insert into queues_letterseen (id) select id from once order by id on conflict do nothing returning id
), chosen as materialized (
    select wanted.*, row_number() over (order by n, queue_id) - 1 as place
    from wanted where n in (select n from once join fresh using (id))
), block as materialized (
    select array_agg(first) as firsts
    from (select nextval('queues_message_id') as first
        from generate_series(0, (select (count(*) - 1) / 4096 from chosen having count(*) > 0))) as b
), local as materialized (
    select l.*, exists (
        select from queues_message m
        where m.state = 0 and (m.queue_id, m.id) > (l.queue_id, l.low) and (m.queue_id, m.id) <= (l.queue_id, 9223372036854775807)
    ) as behind
    from unnest(
        %(locals)s::int[], %(local_connections)s::bigint[], %(lows)s::bigint[], %(rooms)s::int[], %(byte_rooms)s::bigint[]
    ) as l (queue_id, connection, low, room, room_bytes)
    where queues_holds_mailbox(queue_id, connection)
), placed as materialized (
    select firsts[place / 4096 + 1] + place %% 4096 as id, n, queue_id, node_id, copy_of, chosen.key, headers, producer_id,
        start, size, connection,
        not behind and row_number() over earlier <= room and sum(size) over earlier - size < room_bytes as leased
    from chosen join given using (n) left join local using (queue_id), block
    window earlier as (partition by queue_id order by place)
), stored as (
    insert into queues_message (id, queue_id, state, node_id, tag, producer_id, content, key, headers, payload)
    select id, queue_id, case when leased then 1 else 0 end, case when leased then %(node)s::int end,
        case when leased then connection end, producer_id, 3, key, headers, substr(%(payloads)b::bytea, start, size)
    from placed order by id
    on conflict (queue_id, key) where key is not null do nothing
    returning id, queue_id, state
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, published)
    select queue_id, count(*) filter (where state = 0), count(*) filter (where state = 1), count(*)
    from stored group by queue_id
)
select n::int, id, stored.queue_id, state = 1, copy_of, node_id from stored join placed using (id) order by id
