-- Write a node's status.
update hydra_node set
    role = %(role)s, current_id = %(current_id)s, leader = %(leader)s, leader_name = %(leader_name)s,
    lease_until = to_timestamp(%(lease_until)s), irc = %(irc)s, listen = %(listen)s, faults = %(faults)s,
    lines_refused = %(lines_refused)s, lines_lost = %(lines_lost)s,
    seen_at = clock_timestamp()
where id = %(id)s and run = %(run)s
