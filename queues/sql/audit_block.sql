-- The rows of a chain with low <= seq < high in order of seq, as four values: all numbers, all times and all hashes in
-- binary; and as text the events as they are hashed if none of their characters is special, with a mark between them, but
-- for what comes before the first field and after the last. Null values when there are none.
select string_agg(int8send(seq), ''::bytea), string_agg(timestamptz_send(at), ''::bytea), string_agg(hash, ''::bytea),
    string_agg(event || '","id":"' || record_id || '","from":"' || sender || '","to":"' || recipient,
        E'"}\x1f{"event":"')
from (
    select seq, at, event, record_id, sender, recipient, hash from queues_audit
    where chain_id = %(chain)s and seq >= %(low)s and seq < %(high)s order by seq
) as ordered
