-- Store letters, in order: each for its recipient if that is known, a broadcast (to '') for everyone who is connected but
-- its sender. Nothing is stored of a letter whose id was seen before, nor of one whose sender has lost its mailbox.
-- `senders` and `recipients` are places, from 0, in `mailboxes` and `peers`: what letters have in common is given once.
-- `payloads` has all, one behind the other.
-- `locals` are mailboxes connected to this node that want letters now: those up to position `lasts` are leased to their
-- connection, if nothing older is ready.
-- With `careful` nothing is stored either whose key another message of the mailbox has: without it, and where another
-- transaction stores a letter with the same id meanwhile, that is a unique violation.
-- One row of arrays, or of nulls, with an element a letter and recipient in the order of both: position, id, queue, whether
-- it was leased (1 or 0), the recipient's node; with `broadcasts` of such the recipient. Then the places in `peers` of names
-- that no peer has, and the positions of broadcasts whose ids are new.
with sender as materialized (
    select place - 1 as sender, queue_id as sender_id, producer_id, headers::jsonb from unnest(
        %(mailboxes)s::int[], %(connections)s::bigint[], %(producers)s::bigint[], %(headers)s::text[]
    ) with ordinality as s (queue_id, connection, producer_id, headers, place)
    where pg_current_xact_id() is not null and queues_may_lease(%(node)s) and queues_holds_mailbox(queue_id, connection)
), known as materialized (
    select queue_id, name, node_id from queues_mailbox where name = any(%(peers)s::text[])
), live as materialized (
    select queue_id, name, node_id, row_number() over (order by queue_id) as copy
    from queues_mailbox where %(broadcasts)s::bool and node_id is not null
), recipient as materialized (
    select place - 1 as recipient, name = '' as broadcast, queue_id, node_id
    from unnest(%(peers)s::text[]) with ordinality as r (name, place) left join known using (name)
), seen as materialized (
    select id from queues_letterseen
    where id = any(array(select convert_to(key, 'UTF8') from unnest(%(keys)s::text[]) as key))
), fresh as materialized (
    select distinct on (id) n, key, convert_to(key, 'UTF8') as id, sender, sender_id, broadcast, queue_id, node_id, start, size
    from unnest(
        %(senders)s::int[], %(recipients)s::int[], %(keys)s::text[], %(starts)s::int[], %(sizes)s::int[]
    ) with ordinality as g (sender, recipient, key, start, size, n)
        join sender using (sender) join recipient using (recipient)
    where (queue_id is not null or broadcast) and convert_to(key, 'UTF8') not in (select id from seen)
    order by id, n
), noted as (
    insert into queues_letterseen (id) select id from fresh
), local as materialized (
    select l.*, exists (
        select from queues_message m
        where m.state = 0 and (m.queue_id, m.id) > (l.queue_id, l.low) and (m.queue_id, m.id) <= (l.queue_id, 9223372036854775807)
    ) as behind
    from unnest(
        %(locals)s::int[], %(local_connections)s::bigint[], %(lows)s::bigint[], %(lasts)s::int[]
    ) as l (queue_id, connection, low, last)
    where queues_holds_mailbox(queue_id, connection)
), block as materialized (
    -- Ids for a letter and, if there are broadcasts, for its copies.
    select array_agg(nextval('queues_message_id')) as firsts, min(width) as width from (
        select count(*) + 1 as width from live
    ) as copied, generate_series(0, ((select max(n) from fresh) * width - 1) / 4096)
), placed as materialized (
    select firsts[((n - 1) * width + copy) / 4096 + 1] + ((n - 1) * width + copy) %% 4096 as id, n, wanted.key, sender, start, size,
        queue_id, node_id, copy_of, connection, coalesce(not behind and n <= last, false) as leased
    from block, (
        select n, key, sender, start, size, queue_id, node_id, null as copy_of, 0 as copy from fresh where not broadcast
        union all
        select n, key || '|' || live.name, sender, start, size, live.queue_id, live.node_id, live.name, copy
        from fresh, live
        where broadcast and live.queue_id <> sender_id
            and (live.queue_id, key || '|' || live.name) not in (select queue_id, key from fresh where queue_id is not null)
    ) as wanted left join local using (queue_id)
    where not %(careful)s::bool or (select id from queues_message m
        where m.queue_id = wanted.queue_id and m.key = wanted.key and m.key is not null) is null
    order by n, queue_id
), stored as (
    insert into queues_message (id, queue_id, state, node_id, tag, producer_id, content, key, headers, payload)
    select id, queue_id, leased::int, case when leased then %(node)s::int end, case when leased then connection end,
        producer_id, 3, key, headers, substr(%(payloads)b::bytea, start, size)
    from placed join sender using (sender)
), tallied as (
    insert into queues_queuetally (queue_id, ready, leased, published)
    select queue_id, count(*) filter (where not leased), count(*) filter (where leased), count(*)
    from placed group by queue_id
)
select array_agg(n::int), array_agg(id), array_agg(queue_id), array_agg(leased::int), array_agg(node_id),
    case when %(broadcasts)s::bool then array_agg(copy_of) end,
    array(select recipient::int from recipient where queue_id is null and not broadcast),
    case when %(broadcasts)s::bool then array(select n::int from fresh where broadcast) end
from placed
