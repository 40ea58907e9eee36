-- These chains for a page: id, how many rows there have been and the last one's hash and time, rows dropped by
-- retention, events that wait in the journal, the newest anchor (seq, time, key), the last verification.
select c.id, coalesce(h.next_seq, 0), h.hash, h.last_at, coalesce(r.seq + 1, 0), coalesce(j.waiting, 0), a.seq, a.at,
    a.key,
    v.at, v.ok, v.rows, v.broken_seq, v.finding, v.seconds
from queues_auditchain c
left join lateral (
    select next_seq, hash, last_at from queues_audithead where chain_id = c.id order by next_seq desc limit 1
) h on true
left join lateral (
    select seq from queues_auditanchor where chain_id = c.id and kind = 'retention' order by number desc limit 1
) r on true
left join lateral (
    select seq, at, key from queues_auditanchor where chain_id = c.id order by number desc limit 1
) a on true
left join lateral (
    select at, ok, rows, broken_seq, finding, seconds from queues_auditverification
    where chain_id = c.id order by at desc, id desc limit 1
) v on true
left join (select chain, count(*) as waiting from queues_auditjournal group by chain) j on j.chain = c.name
where c.id = any(%(chains)s::int[])
