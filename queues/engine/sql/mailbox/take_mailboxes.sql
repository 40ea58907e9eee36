-- Give mailboxes to new connections of this node, in the order in which all nodes lock them: by queue, new ones last. No API
-- key makes names beyond `most` (0: no limit); those that another node makes at this moment are not seen. `formers` are the
-- numbers of connections that had their mailboxes until the database was lost. One row a name, in order: the queue, the
-- connection's number, and why it was refused.
with given as materialized (
    select g.*, (select queue_id from queues_mailbox m where m.name = g.name) as queue_id
    from unnest(%(names)s::text[], %(keys)s::bigint[], %(formers)s::bigint[]) with ordinality as g (name, key, former, n)
), owned as materialized (
    select owner_id as key, count(*) as count from queues_mailbox
    where %(most)s::int > 0 and owner_id = any(array(select key from given where queue_id is null)) group by owner_id
), ordered as materialized (
    select given.*, queue_id is null and %(most)s::int > 0
        and coalesce(count, 0) + row_number() over (partition by key, queue_id is null order by n) > %(most)s::int as beyond
    from given left join owned using (key) order by queue_id nulls last, name
)
select mailbox, taken, case when beyond then 'beyond' else refused end
from ordered left join lateral (
    select * from queues_take_mailbox(name, key, %(node)s, %(by_owner_only)s, former) where not beyond offset 0
) as connection on true
order by n
