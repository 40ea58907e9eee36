-- A batch of messages, with the ids from first to last.

-- live: a tenth of them is dead, a twentieth delayed, a twentieth leased
insert into queues_message (id, queue_id, state, attempts, node_id, producer_id, published_at, due_at, dead_at, key,
    headers, error, payload)
select %(messages)s + n, queue, state, 0, case state when 1 then %(node)s end, %(key)s + n %% %(connections)s,
    now() - (%(messages)s - n) * interval '10 ms', case state when 2 then now() + interval '1 day' end,
    case state when 3 then now() end, case when n %% 10 = 0 then 'key-' || n end,
    case when n %% 5 = 0 then '{"tenant": "a"}'::jsonb end, case state when 3 then 'no such account' end,
    convert_to('{"number": ' || n || ', "text": "' || repeat('x', 80) || '"}', 'UTF8')
from (
    select n, %(queue)s + case when n %% 2 = 0 then 0 else n %% %(queues)s end as queue,
        (array[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 3])[1 + (n / 2) %% 20] as state
    from generate_series(%(first)s::bigint, %(last)s::bigint) n
) as new;

-- finished, half as many: of two thousand ids each, those of the first are rows
insert into queues_archivedmessage (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at,
    delivered_at, finished_at, size, key, payload)
select n, %(queue)s + n %% %(queues)s, 0, 0, %(key)s, %(key)s, at - interval '2 s', at - interval '1 s', at, 20,
    case when n %% 10 = 0 then 'key-' || n end, convert_to('{"number": ' || n || '}', 'UTF8')
from (select n, now() - (%(last)s - n) * interval '10 ms' as at
    from generate_series(%(first)s::bigint, %(last)s::bigint, 2) n where n / 1000 %% 2 = 0) as new;

-- finished, and those of the second a segment
insert into queues_archivedsegment (first, count, queue_id, producer_id, published_at, finished_at, sizes, lows,
    highs, consumers, delivered, jobs)
select 1000 * n, 500, %(queue)s + n %% %(queues)s, %(key)s, at - interval '2 s', at, array_fill(20, array[500]),
    array[0, 250], array[249, 499], array[%(key)s, null], array[at - interval '1 s', at - interval '1 s'],
    array[null, true]
from (select n, now() - (%(last)s - 1000 * n) * interval '10 ms' as at
    from generate_series(%(first)s::bigint / 1000, %(last)s::bigint / 1000 - 1) n where n %% 2 = 1) as new;
