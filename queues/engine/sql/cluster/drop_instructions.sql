-- Delete instructions for nodes that have ended.
delete from queues_instruction where node_id <> all(array(select id from queues_node))
