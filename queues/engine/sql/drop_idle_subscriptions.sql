-- Remove subscriptions that nobody has polled for so many days, their queues and messages. Returns how many.
with idle as materialized (
    select id, queue_id from queues_subscription where used_at < now() - make_interval(days => %(days)s)
), messages as (
    delete from queues_message where queue_id in (select queue_id from idle)
), counts as (
    delete from queues_queuecount where queue_id in (select queue_id from idle)
), subscriptions as (
    delete from queues_subscription where id in (select id from idle)
), queues as (
    delete from queues_queue where id in (select queue_id from idle)
)
select count(*) from idle
