-- Write a node's term, pledge and electorate, and log its pledges, if this process still runs the node.
with written as (
    update hydra_node set term = %(term)s, pledge = %(pledge)s, electorate = %(electorate)s
    where id = %(id)s and run = %(run)s
    returning voter, name
), voted as (
    insert into hydra_vote (voter, name, term, pledge)
    select written.voter, written.name, given.term, given.pledge
    from written, unnest(%(terms)s::bigint[], %(pledges)s::bigint[]) given (term, pledge)
    -- A write whose answer was lost is repeated. Another pledge for the same term fails.
    where not exists (
        select from hydra_vote old
        where old.voter = written.voter and old.term = given.term and old.pledge = given.pledge)
)
select count(*) from written
