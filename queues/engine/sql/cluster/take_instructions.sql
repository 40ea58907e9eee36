-- Take this node's instructions from an id on, the first `limit`. One row an instruction: id, text.
with told as materialized (
    select id from queues_instruction where node_id = %(node)s and id >= %(first)s order by id limit %(limit)s
)
delete from queues_instruction where node_id = %(node)s and id = any(array(select id from told)) returning id, text
