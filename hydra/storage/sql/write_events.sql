-- Insert a node's events, in order.
insert into hydra_event (node_id, at, kind, term, text)
select %(id)s, to_timestamp(event.at), event.kind, event.term, event.text
from unnest(%(at)s::double precision[], %(kind)s::text[], %(term)s::bigint[], %(text)s::text[])
    with ordinality event (at, kind, term, text, place)
order by event.place
