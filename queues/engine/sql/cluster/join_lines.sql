-- Consumers of queues with a single active one have come to this node. One row a consumer, but for those of queues that
-- are gone: its place in the arrays, from 1 on, and its number.
select place, consumer
from queues_join_lines(%(queues)s::int[], %(connections)s::bigint[], %(names)s::text[], %(node)s)
