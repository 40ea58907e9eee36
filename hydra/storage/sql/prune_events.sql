-- Delete a node's events that are old, or have many newer ones.
delete from hydra_event where node_id = %(id)s and (
    at < now() - make_interval(days => %(days)s)
    or id <= (select id from hydra_event where node_id = %(id)s order by id desc offset %(kept)s limit 1))
