-- Whether this transaction may write samples: one at a time, over all nodes.
select pg_try_advisory_xact_lock(hashtext('queues_samples'))
