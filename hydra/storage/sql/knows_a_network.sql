-- Whether this database has known another node, or any vote: then a new row is no first start.
select exists (select from hydra_node where name <> %(name)s) or exists (select from hydra_vote)
