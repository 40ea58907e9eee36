-- Take the oldest messages of a queue in one state out of the store; with `ids` only those. What nodes are about to
-- change is left alone, and what has an id above `high`, without the priority in its highest byte. `outcome` is one of the archive's. In an audited queue each is recorded as `event`, `by` whom;
-- with `named` so it is in the chain of operators. Returns how many.
with recursive cause as (
    select %(outcome)s::smallint as outcome, %(event)s::text as event, %(by)s::text as by, %(named)s::bool as named, false as whole
), picked as ( -- not IN (select ... limit ...), which some plans run once for each message
    select array(select id from queues_message
    where queue_id = %(queue)s and state = %(state)s and (id & 72057594037927935) <= %(high)s
        and (%(ids)s::bigint[] is null or id = any(%(ids)s::bigint[]))
    order by id limit %(limit)s for update skip locked) as ids
),
\ir ../engine/sql/parts/remove.sql
select count(*) from gone
