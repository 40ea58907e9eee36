-- Chains that have grown since their newest anchor: id, name, last seq and hash, the newest anchor's number (or 0) and
-- signature, the time, which never falls, whatever the clock does, and the chain's own. A committed head stays true, so
-- no lock is needed.
select c.id, c.name, h.next_seq - 1, h.hash, coalesce(a.number, 0), a.signature,
    greatest(clock_timestamp(), h.last_at, a.at), c.created_at
from queues_auditchain c
cross join lateral (
    select next_seq, hash, last_at from queues_audithead where chain_id = c.id order by next_seq desc limit 1
) h
left join lateral (
    select number, signature, at from queues_auditanchor where chain_id = c.id order by number desc limit 1
) a on true
where h.next_seq > 0
    and not exists (select from queues_auditanchor b where b.chain_id = c.id and b.seq >= h.next_seq - 1)
    and (a.at is null or %(older_than)s::float8 <= 0
        or a.at <= clock_timestamp() - make_interval(secs => %(older_than)s::float8))
order by c.name
