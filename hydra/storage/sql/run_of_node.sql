-- A node's present or last process, and its promises.
select run, host, pid, voter, term, pledge, electorate from hydra_node where id = %(id)s
