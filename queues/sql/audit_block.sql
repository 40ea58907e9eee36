-- The rows of a chain with low <= seq < high in order of seq, as four values, all of one column in each: numbers, times
-- and hashes in binary; and the events' four fields, in UTF-8, with FC, FD and FE between them and NUL between events,
-- which no text has. Null values when there are none. A hash that has not 32 bytes is told as zeros, which no row
-- hashes to.
select string_agg(int8send(seq), ''::bytea), string_agg(timestamptz_send(at), ''::bytea),
    string_agg(case octet_length(hash) when 32 then hash else decode(repeat('00', 32), 'hex') end, ''::bytea),
    string_agg(textsend(event) || '\xfc' || textsend(record_id) || '\xfd' || textsend(sender) || '\xfe'
        || textsend(recipient), '\x00'::bytea)
from (
    select seq, at, event, record_id, sender, recipient, hash from queues_audit
    where chain_id = %(chain)s and seq >= %(low)s and seq < %(high)s order by seq
) as ordered
