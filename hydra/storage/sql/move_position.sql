-- Note a node's last delivered line.
update hydra_node set position_term = %(term)s, position_idx = %(idx)s where name = %(node)s
