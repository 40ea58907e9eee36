-- A node is gone, and so are its connections: their mailboxes are free.
update queues_mailbox set node_id = null, connection = null, left_at = clock_timestamp() where node_id = %(node)s
