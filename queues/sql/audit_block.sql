-- The rows of a chain with low <= seq < high in order of seq: an array for each column, all hashes in one value.
select array_agg(seq), array_agg(event), array_agg(record_id), array_agg(sender), array_agg(recipient),
    string_agg(hash, ''::bytea)
from (
    select seq, event, record_id, sender, recipient, hash from queues_audit
    where chain_id = %(chain)s and seq >= %(low)s and seq < %(high)s order by seq
) as ordered
