-- Note for operators that the store has another past than a node knew.
insert into queues_auditjournal (chain, event, record_id, sender, recipient)
values ('operators', 'history-rewritten', 'store', %(node)s, %(reason)s)
