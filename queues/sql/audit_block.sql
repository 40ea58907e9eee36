-- The rows of a chain with low <= seq < high in order of seq: an array for each column, all hashes in one value; the first
-- row that is said to be earlier than the one before it, the earliest time and the latest.
select array_agg(seq), array_agg(event), array_agg(record_id), array_agg(sender), array_agg(recipient),
    string_agg(hash, ''::bytea), min(seq) filter (where at < before), min(at), max(at)
from (
    select seq, event, record_id, sender, recipient, hash, at, lag(at) over (order by seq) as before from queues_audit
    where chain_id = %(chain)s and seq >= %(low)s and seq < %(high)s order by seq
) as ordered
