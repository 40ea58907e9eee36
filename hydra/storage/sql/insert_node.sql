-- Insert a node at its first start; no row if it was started before.
insert into hydra_node (name, voter) values (%(name)s, %(voter)s)
on conflict (name) do nothing
returning id
