-- Give the messages that Celery's transport has published the content type that identifies them from now on.
update queues_message set content = 4 where headers -> 'kombu' ? 'properties'
