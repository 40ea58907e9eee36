-- Finished messages that have rows of their own.
insert into queues_archivedmessage (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at,
    delivered_at, finished_at, size, key, xid)
select %(start)s + n, 1 + n %% 4, 0, 0, 1, 1, now() - n * interval '1 ms', now() - n * interval '0.5 ms', now(),
    100, null, (select pg_current_xact_id()::text::bigint)
from generate_series(0, %(messages)s - 1) n
