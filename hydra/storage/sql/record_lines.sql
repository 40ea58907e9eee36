-- Note lines as published; returns the new ones.
insert into hydra_recordedline (queue, term, idx)
select %(queue)s, line.term, line.idx
from unnest(%(terms)s::bigint[], %(indexes)s::bigint[]) with ordinality line (term, idx, place)
order by line.place
on conflict do nothing
returning term, idx
