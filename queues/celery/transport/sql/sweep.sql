-- Temporary queues that have been without a consumer for too long.
select queues_see_temporary(%(lock_class)s)
