-- The audit chains: id, name, the first row that is still there, where the chain goes on.
select c.id, c.name, (select a.seq from queues_audit a where a.chain_id = c.id order by a.seq limit 1),
    (select h.next_seq from queues_audithead h where h.chain_id = c.id order by h.next_seq desc limit 1)
from queues_auditchain c order by c.name
