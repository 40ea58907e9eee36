-- For each chain with rows before a day: the seq of its first of them; then id, name, the last one's seq and hash, the
-- number (or 0) and signature of the chain's newest anchor, the time, and when the chain was created.
select f.seq, c.id, c.name, l.seq, l.hash, coalesce(a.number, 0), a.signature, clock_timestamp(), c.created_at
from queues_auditchain c
cross join lateral (
    select seq from queues_audit
    where chain_id = c.id and at < %(before)s::timestamp at time zone 'UTC' order by seq limit 1
) f
cross join lateral (
    select seq, hash from queues_audit
    where chain_id = c.id and at < %(before)s::timestamp at time zone 'UTC' order by seq desc limit 1
) l
left join lateral (
    select number, signature from queues_auditanchor where chain_id = c.id order by number desc limit 1
) a on true
order by c.name
