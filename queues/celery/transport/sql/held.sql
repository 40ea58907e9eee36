-- The queue is consumed from: once its last consumer has died it goes soon. No row when it is gone already.
update queues_temporaryqueue set unused_since = null,
    expires = case when auto_delete then least(expires, make_interval(secs => %(patience)s)) else expires end
where queue_id = %(queue)s
returning auto_delete
