-- The queues of mailboxes that exist. One row a mailbox: name, queue.
select name, queue_id from queues_mailbox where name = any(%(names)s::text[])
