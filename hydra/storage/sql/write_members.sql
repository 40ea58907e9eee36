-- Replace a node's members; unchanged rows are not written again.
with given as (
    select * from jsonb_to_recordset(%(rows)s::jsonb) as row (
        id bigint, voter text, tag text, hops integer, via bigint, answered double precision, voting boolean)
), gone as (
    delete from hydra_member where node_id = %(id)s and member not in (select id from given)
)
insert into hydra_member as known (node_id, member, voter, tag, hops, via, answered_at, voting)
select %(id)s, id, voter, tag, hops, via, to_timestamp(answered), voting from given
on conflict (node_id, member) do update set
    voter = excluded.voter, tag = excluded.tag, hops = excluded.hops, via = excluded.via,
    answered_at = excluded.answered_at, voting = excluded.voting
where (known.voter, known.tag, known.hops, known.via, known.answered_at, known.voting)
    is distinct from
    (excluded.voter, excluded.tag, excluded.hops, excluded.via, excluded.answered_at, excluded.voting)
