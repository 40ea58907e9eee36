-- A node is started for the first time under its stable name; no row if it was started before.
insert into hydra_node (name, voter) values (%(name)s, %(voter)s)
on conflict (name) do nothing
returning id
