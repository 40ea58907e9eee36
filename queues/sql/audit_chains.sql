-- Every chain with its head, its newest anchor and its last verification.
select c.name, coalesce(h.next_seq, 0), h.last_at, a.seq, a.at, v.at, v.ok, v.rows, v.finding
from queues_auditchain c
left join lateral (
    select next_seq, last_at from queues_audithead where chain_id = c.id order by next_seq desc limit 1
) h on true
left join lateral (
    select seq, at from queues_auditanchor where chain_id = c.id order by seq desc, number desc limit 1
) a on true
left join lateral (
    select at, ok, rows, finding from queues_auditverification where chain_id = c.id order by at desc, id desc limit 1
) v on true
order by c.name
