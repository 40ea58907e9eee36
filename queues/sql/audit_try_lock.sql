-- Whether this transaction is the one that writes anchors and drops old rows, until it ends.
select pg_try_advisory_xact_lock(hashtext('queues_auditanchor'))
