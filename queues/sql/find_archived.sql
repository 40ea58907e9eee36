-- Of the finished messages of a span of time, newest first, the first `most` that fit: finished since `low` and before
-- those with the time `high` and the id `below`. Of a body the first 64 KiB are searched, if it was kept. A null
-- parameter fits all. One row: the times of those that fit, their ids, how many were looked at.
with looked as materialized (
    select finished_at, id, (%(queue)s::int is null or queue_id = %(queue)s::int)
        and (%(key)s::text is null or key = %(key)s::text)
        and (%(header)s::text is null or (jsonb_typeof(headers) = 'object' and headers ? %(header)s::text))
        and (%(value)s::text is null or headers ->> %(header)s::text = %(value)s::text)
        and (%(producers)s::bigint[] is null or producer_id = any(%(producers)s::bigint[]))
        and (%(content)s::smallint is null or content = %(content)s::smallint)
        and (%(text)s::bytea is null or position(%(text)s::bytea in substring(payload from 1 for 65536)) > 0) as fits
    from queues_archive
    where finished_at >= %(low)s and finished_at <= %(high)s and (finished_at, id) < (%(high)s, %(below)s)
        and (%(ids)s::bigint[] is null or id = any(%(ids)s::bigint[]))
), fitting as materialized (
    select finished_at, id from looked where fits order by finished_at desc, id desc limit %(most)s
)
select (select array_agg(finished_at order by finished_at desc, id desc) from fitting),
    (select array_agg(id order by finished_at desc, id desc) from fitting),
    (select count(*) from looked)
