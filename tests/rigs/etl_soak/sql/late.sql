-- Rows finished on another day come late.
insert into queues_archivedmessage (id, queue_id, outcome, attempts, published_at, finished_at, size)
select nextval('queues_message_id'), %(queue)s, 1, 0, %(day)s, %(day)s + n * interval '1 second', n
from generate_series(1, %(rows)s) n
