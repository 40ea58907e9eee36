-- Write for which times a node led or held IRC; those that go on end later each time.
insert into hydra_tenure as known (voter, name, kind, term, began_at, until)
select n.voter, n.name, given.kind, given.term, to_timestamp(given.began), to_timestamp(given.until)
from hydra_node n, unnest(%(kinds)s::text[], %(terms)s::bigint[], %(began)s::float8[], %(until)s::float8[])
    as given (kind, term, began, until)
where n.id = %(id)s
on conflict (voter, kind, began_at) do update set until = excluded.until where known.until < excluded.until
