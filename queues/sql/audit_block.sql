-- The rows of a chain with low <= seq < high in order of seq, as four values: all numbers, all times and all hashes in
-- binary; and as text each event as it is hashed if none of its characters is special, a mark, and the row's hash, which
-- the next event is hashed with. Null values when there are none.
select string_agg(int8send(seq), ''::bytea), string_agg(timestamptz_send(at), ''::bytea), string_agg(hash, ''::bytea),
    string_agg('{"event":"' || event || '","id":"' || record_id || '","from":"' || sender || '","to":"' || recipient
        || E'"}\x1f' || encode(hash, 'hex'), '')
from (
    select seq, at, event, record_id, sender, recipient, hash from queues_audit
    where chain_id = %(chain)s and seq >= %(low)s and seq < %(high)s order by seq
) as ordered
