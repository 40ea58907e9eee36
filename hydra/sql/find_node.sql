-- A node's row; its lock may be taken only by one that holds this row.
select id, host, pid from hydra_node where name = %(name)s for update
