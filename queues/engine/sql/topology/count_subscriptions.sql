-- The number of subscriptions of an API key.
select count(*) from queues_subscription where owner_id = %(owner)s
