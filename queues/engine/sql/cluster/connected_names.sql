-- The names of the mailboxes that are connected to any node. One row: an array.
select coalesce(array_agg(name), '{}') from queues_mailbox where node_id is not null
