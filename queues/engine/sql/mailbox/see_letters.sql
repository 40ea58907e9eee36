-- Note the ids of letters that go to a queue or topic, if their sender still has its mailbox. One row an id that was
-- not seen before.
insert into queues_letterseen (id)
select distinct id from unnest(%(ids)b::bytea[], %(senders)s::int[], %(connections)s::bigint[]) as g (id, sender, connection)
where queues_holds_mailbox(sender, connection)
order by id on conflict do nothing returning id
