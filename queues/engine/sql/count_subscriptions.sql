-- How many subscriptions an API key has made.
select count(*) from queues_subscription where owner_id = %(owner)s
