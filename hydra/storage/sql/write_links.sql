-- Replace a node's links; unchanged rows are not written again.
with given as (
    select * from jsonb_to_recordset(%(rows)s::jsonb) as row (
        number bigint, target text, origin text, peer bigint, peer_tag text, state text, extended boolean,
        opened double precision)
), gone as (
    delete from hydra_link where node_id = %(id)s and number not in (select number from given)
)
insert into hydra_link as link (node_id, number, target, origin, peer, peer_tag, state, extended, opened_at)
select %(id)s, number, target, origin, peer, peer_tag, state, extended, to_timestamp(opened) from given
on conflict (node_id, number) do update set
    peer = excluded.peer, peer_tag = excluded.peer_tag, state = excluded.state, extended = excluded.extended
where (link.peer, link.peer_tag, link.state, link.extended)
    is distinct from (excluded.peer, excluded.peer_tag, excluded.state, excluded.extended)
