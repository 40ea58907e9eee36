-- The chains for which events wait in the journal, and how many.
select chain, count(*) from queues_auditjournal group by chain order by chain
