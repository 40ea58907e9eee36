-- A process begins to run a node: the last status is cleared, the promises hold.
with links as (delete from hydra_link where node_id = %(id)s),
members as (delete from hydra_member where node_id = %(id)s)
update hydra_node set
    run = %(run)s, host = %(host)s, pid = %(pid)s, started_at = clock_timestamp(), seen_at = clock_timestamp(),
    listen = '{}', role = 'outside', current_id = null, leader = null, leader_name = '', lease_until = null, irc = 'off'
where id = %(id)s
returning voter, term, pledge, electorate, position_term, position_idx
