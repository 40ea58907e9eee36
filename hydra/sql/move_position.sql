-- A node has delivered all lines up to this one.
update hydra_node set position_term = %(term)s, position_idx = %(idx)s where name = %(node)s
