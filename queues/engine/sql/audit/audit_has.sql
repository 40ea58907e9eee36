-- Whether a chain has a row with this number and hash.
select exists (select from queues_audit where chain_id = %(chain)s and seq = %(seq)s and hash = %(hash)s)
