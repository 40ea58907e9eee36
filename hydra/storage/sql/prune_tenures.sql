-- Delete tenures that are old, or have many newer ones.
delete from hydra_tenure
where until < now() - make_interval(days => %(days)s)
    or id <= (select id from hydra_tenure order by id desc offset %(kept)s limit 1)
