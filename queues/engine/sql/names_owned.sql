-- The number of mailboxes of each of these API keys. One row a key that has some: key, count.
select owner_id, count(*) from queues_mailbox where owner_id = any(%(keys)s::bigint[]) group by owner_id
