-- Lock the head of a chain until the transaction ends, making the chain if need be. Chains that one transaction
-- appends to are locked in order of their names. The row goes into audit_append.sql.
select chain_id, next_seq, hash from queues_audit_head(%(chain)s)
