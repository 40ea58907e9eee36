-- A node's row, locked: its advisory lock may be taken only under this row lock.
select id, host, pid from hydra_node where name = %(name)s for update
