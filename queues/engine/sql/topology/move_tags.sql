-- Move the delivery tags of subscriptions on, at least to these.
update queues_subscription s set next_tag = greatest(next_tag, given.tag)
from unnest(%(queues)s::int[], %(tags)s::bigint[]) as given (queue_id, tag) where s.queue_id = given.queue_id
