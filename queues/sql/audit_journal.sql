-- Note events for a chain in the caller's transaction, without the chain's lock. Returns how many.
with noted as (
    insert into queues_auditjournal (chain, event, record_id, sender, recipient)
    select %(chain)s, event, record_id, sender, recipient
    from unnest(%(events)s::text[], %(ids)s::text[], %(senders)s::text[], %(recipients)s::text[])
        with ordinality as given (event, record_id, sender, recipient, n)
    order by n
    returning 1
)
select count(*) from noted
