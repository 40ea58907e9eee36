-- Remove subscriptions that were not polled for so many days and whose noted end has come, their queues and messages, some at a time; `ids`: of
-- these alone (null: of all), and none of `skip`. Returns how many, and the number of messages.
with idle as materialized (
    select s.id, queue_id, name, audited from queues_subscription s join queues_queue q on q.id = queue_id
    where used_at < now() - make_interval(days => %(days)s) and coalesce(ends_at, '-infinity') <= now()
        and coalesce(s.id = any(%(ids)s::bigint[]), true) and s.id <> all(%(skip)s::bigint[])
    order by s.id limit %(limit)s
), messages as (
    delete from queues_message where queue_id in (select queue_id from idle)
    returning coalesce(origin_id, id) as first_id, queue_id
), segments as (
    delete from queues_segment where queue_id in (select queue_id from idle) returning slot, first, queue_id, count
), settlements as (
    delete from queues_segmentsettlement where first in (select first from segments) returning low, high
), journaled as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select 'queue:' || name, 'expire', first_id::text, name, ''
    from (
        select first_id, queue_id from messages
        union all
        select s.first + n, queue_id from segments s, generate_series(0, count - 1) as n
        where not exists (
            select from queues_segmentsettlement t where t.slot = s.slot and t.first = s.first
                and n between low and high)
    ) as message join idle using (queue_id)
    where audited order by first_id
), counts as (
    delete from queues_queuecount where queue_id in (select queue_id from idle)
), subscriptions as (
    delete from queues_subscription where id in (select id from idle)
), queues as (
    delete from queues_queue where id in (select queue_id from idle)
)
select count(*), (select count(*) from messages) + (select coalesce(sum(count), 0) from segments)
    - (select coalesce(sum(high - low + 1), 0) from settlements)
from idle
