-- Consumers of this node, all of them if there are no numbers, are consumers of their queues no more.
select queues_leave_lines(%(numbers)s::bigint[], %(node)s)
