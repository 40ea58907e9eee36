-- A queue's policy for publishes, at one version of the topology: id, seconds that messages live, whether it is
-- temporary, and whether a message is stored in it and nowhere else, without a count being kept or a record made.
select coalesce((select version from queues_topology), 0), q.id, extract(epoch from q.message_ttl)::float8,
    exists (select from queues_temporaryqueue t where t.queue_id = q.id),
    q.max_length is null and not q.audited and not exists (select from queues_route where source = 'queue:' || q.name)
from queues_queue q where q.name = %(name)s and q.kind <> 'mailbox'
