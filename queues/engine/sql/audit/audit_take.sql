-- Take the oldest events of a chain out of the journal; they are appended in this transaction.
delete from queues_auditjournal where id = any(array(
    select id from queues_auditjournal where chain = %(chain)s order by id limit %(limit)s
))
returning id, event, record_id, sender, recipient
