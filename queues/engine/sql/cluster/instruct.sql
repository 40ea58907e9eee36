-- Have nodes do something: texts, and for each the node, or null for every node.
select queues_instruct(%(texts)s::text[], %(nodes)s::int[])
