-- Lease the oldest ready messages of a queue to this node, looking above `low` only. In order of id. With `limited`,
-- never more are leased over all nodes than the queue's concurrency limit allows: claims of one queue then wait for
-- each other. Messages in segments are leased by segments, whole ones, and apart from those that have rows: a claim
-- takes the ones or the others, what comes first. Of segments the first one may have more messages than `limit`, if it
-- has no more than `most_packed` bytes in memory, `overhead` a message among them. Before the messages comes one row
-- with id -1: the transactions that were under way (pg_current_snapshot) as payload; as attempts, 1 when there may be
-- more than were taken; and as detail the first id of a segment that comes next and has too many messages: it is to be
-- unpacked.
with allowed as materialized (
    select case when %(limited)s
        then greatest(0, least(%(limit)s::bigint, queues_concurrency_left(%(queue)s))) else %(limit)s end as count
\ir ../parts/claimable.sql
    limit (select count from allowed)
    for update skip locked
), leased as (
    update queues_message set state = 1, node_id = %(node)s
    where ctid = any(array(select ctid from picked))
\ir ../parts/claimed.sql
