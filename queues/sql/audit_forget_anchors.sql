-- Forget a chain's anchors before the last periodic or manual one that vouches for a row that is dropped. Returns
-- how many.
with gone as (
    delete from queues_auditanchor where chain_id = %(chain)s and number < (
        select max(number) from queues_auditanchor
        where chain_id = %(chain)s and kind <> 'retention' and seq <= %(seq)s
    )
    returning 1
)
select count(*) from gone
