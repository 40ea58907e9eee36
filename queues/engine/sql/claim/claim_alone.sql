-- As claim.sql, for a queue that no other node serves and that has no limit: rows need not be locked before they are
-- updated, which makes it cheaper. Should another claim come in between after all, the update sees
-- that a row is no longer ready and leaves it; written so that no index is tempted to look for it. As there, the first
-- row tells of the claim itself.
with allowed as (
    select %(limit)s::bigint as count
\ir ../parts/claimable.sql
    limit %(limit)s
), leased as (
    update queues_message set state = 1, node_id = %(node)s
    where ctid = any(array(select ctid from picked)) and state + 0 = 0 and queue_id + 0 = %(queue)s
\ir ../parts/claimed.sql
