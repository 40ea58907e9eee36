-- Finished messages in segments; every fourth was acknowledged in two ranges.
insert into queues_archivedsegment (first, count, queue_id, producer_id, published_at, finished_at, sizes,
    lows, highs, consumers, delivered, jobs, xid)
select %(start)s + n, slots, 1 + turn, 1, now() - n * interval '1 ms', now(), array_fill(100, array[slots]),
    case ranges when 1 then array[0] else array[0, slots / 2] end,
    case ranges when 1 then array[slots - 1] else array[slots / 2 - 1, slots - 1] end,
    array_fill(1, array[ranges]), array_fill(now() - n * interval '0.5 ms', array[ranges]),
    array_fill(null::boolean, array[ranges]), (select pg_current_xact_id()::text::bigint)
from (
    select n, turn, slots, case when turn = 3 and slots > 1 then 2 else 1 end as ranges
    from generate_series(0, %(messages)s - 1, %(slots)s) n, lateral (
        select n / %(slots)s %% 4 as turn, least(%(slots)s, %(messages)s - n)::integer as slots) as cut
) as segment
