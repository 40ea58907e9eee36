-- The same for segments of a node, these `ids` (null: all) without those in `skip`, but for segments that others hold
-- locked; returns how many these are.
select count(*) - cardinality(queues_unpack_segments(coalesce(array_agg(first), '{}'), false))
from queues_opensegment
where node_id = %(node)s and coalesce(first = any(%(ids)s::bigint[]), true) and first <> all(%(skip)s::bigint[])
