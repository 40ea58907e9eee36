-- Which process runs a node, or ran it last, and what the node has promised.
select run, host, pid, voter, term, pledge, electorate from hydra_node where id = %(id)s
