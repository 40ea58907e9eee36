-- What Celery's transport has published so far has the content type by which it is known from now on.
update queues_message set content = 4 where headers -> 'kombu' ? 'properties'
