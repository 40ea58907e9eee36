drop trigger node_keeps_promises on hydra_node;
drop trigger vote_stands on hydra_vote;
drop function hydra_node_keeps_promises();
drop function hydra_vote_refuse();
