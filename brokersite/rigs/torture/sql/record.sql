-- The audit chains of the queues, in order.
select q.name, event, record_id, sender, recipient, encode(hash, 'hex')
from queues_audit a join queues_auditchain c on c.id = chain_id join queues_queue q on 'queue:' || q.name = c.name
where q.name = any(%s) order by q.name, seq
