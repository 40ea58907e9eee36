-- Remove acknowledged messages, each once, and archive those of queues that keep something of theirs (`archive`: there
-- are such; `whole`: some with their payload). The arrays are in the order of the ids; `delivered` are Unix times. What
-- is the same for all messages is given once, and its array is null: the API key of the consumer; whether the archive
-- keeps nothing (0), metadata (1) or the whole message (2); whether it was a job. One row: with `audited` the ids that
-- were there, and their first ones in the same order.
with recursive cause as (
    select 0 as outcome, %(whole)s::bool as whole
), picked as (
    select %(ids)s::bigint[] as ids
), finished as (
    select gone.*, coalesce(given.consumer, %(consumer)s::bigint) as consumer_id,
        to_timestamp(delivered) as delivered_at,
        nullif(coalesce(given.job, %(job)s::bool), false) as job, result,
        coalesce(given.keep, %(keep)s::smallint) as kept
    from gone left join unnest(
        %(ids)s::bigint[], %(delivered)s::float8[], %(consumers)s::bigint[], %(keeps)s::smallint[], %(jobs)s::bool[],
        %(results)b::bytea[]
    ) as given (id, delivered, consumer, keep, job, result) using (id)
    where %(archive)s
),
\ir ../parts/finish.sql
select array_agg(id), array_agg(coalesce(origin_id, id)) from gone where %(audited)s
