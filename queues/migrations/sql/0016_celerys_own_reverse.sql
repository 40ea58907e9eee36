-- Celery's messages are JSON or bytes again.
with celerys as (
    select id, case when headers -> 'kombu' ->> 'content_type' = 'application/json' and not headers ? 'compression'
        then 2 end as content
    from queues_message where content = 4
)
update queues_message set content = celerys.content from celerys where queues_message.id = celerys.id
