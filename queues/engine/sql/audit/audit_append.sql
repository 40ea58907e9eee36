-- Append rows to a chain whose head this transaction has locked, and move the head. Fails, and with it the transaction,
-- if the head is not there: its result needs no check. Time never falls as seq grows, even if the clock does.
-- A row has an id and the number of its kind: event, sender and recipient are given once for all rows of a kind.
with head as materialized (
    update queues_audithead set next_seq = next_seq + %(count)s::bigint, hash = %(last)s::bytea,
        last_at = greatest(clock_timestamp(), last_at)
    where chain_id = %(chain)s::int and next_seq = %(seq)s::bigint
    returning last_at
), appended as (
    insert into queues_audit (chain_id, seq, at, event, record_id, sender, recipient, hash)
    select %(chain)s::int, %(seq)s::bigint + n - 1, last_at, event, record_id, sender, recipient,
        substr(%(hashes)s::bytea, (32 * n - 31)::int, 32)
    from head, unnest(%(ids)s::text[], %(kinds)s::int[]) with ordinality as given (record_id, kind, n)
        join unnest(%(events)s::text[], %(senders)s::text[], %(recipients)s::text[])
            with ordinality as alike (event, sender, recipient, kind) using (kind)
)
select queues_audit_complete(count(*) * %(count)s::bigint, %(count)s) from head
