-- Which of these messages are in the store or the archive: those with this id, in this queue, that were published
-- between two times (Unix). Returns their places in the arrays.
select n
from unnest(%(ids)s::bigint[], %(queues)s::int[], %(sinces)s::float8[], %(untils)s::float8[])
    with ordinality as asked (id, queue, since, until, n)
where exists (
    select from queues_message m where m.id = asked.id and m.queue_id = queue
        and m.published_at between to_timestamp(since) and to_timestamp(until)
) or exists (
    select from queues_segment s where first > greatest(asked.id, -9223372036854770000) - 4096 and first <= asked.id
        and asked.id < first + count and s.queue_id = queue
        and s.published_at between to_timestamp(since) and to_timestamp(until)
) or exists (
    select from queues_archivedmessage m where m.id = asked.id and m.queue_id = queue
        and m.published_at between to_timestamp(since) and to_timestamp(until)
) or exists (
    select from queues_archivedsegment s where first > greatest(asked.id, -9223372036854770000) - 4096
        and first <= asked.id and asked.id < first + count and s.queue_id = queue
        and s.published_at between to_timestamp(since) and to_timestamp(until)
)
