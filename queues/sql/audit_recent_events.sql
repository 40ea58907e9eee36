-- The events among a chain's newest rows.
select distinct event from (
    select event from queues_audit where chain_id = %(chain)s order by seq desc limit %(newest)s
) as recent
