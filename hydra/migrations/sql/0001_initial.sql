-- A node's promises: a term never goes back, and there is one pledge in each.
create function hydra_node_keeps_promises() returns trigger
language plpgsql as $$
begin
    if new.voter <> old.voter then
        raise exception 'node % keeps its lasting key', old.name
            using errcode = 'check_violation', constraint = 'hydra_node_promises';
    elsif new.term < old.term then
        raise exception 'node % is in term %, and was to go back to %', old.name, old.term, new.term
            using errcode = 'check_violation', constraint = 'hydra_node_promises';
    elsif new.term = old.term and old.pledge is not null and new.pledge is distinct from old.pledge then
        raise exception 'node % has pledged to % in term %, and was to pledge to %', old.name, old.pledge, old.term,
            coalesce(new.pledge::text, 'none')
            using errcode = 'check_violation', constraint = 'hydra_node_promises';
    end if;
    return new;
end $$;
create trigger node_keeps_promises before update of voter, term, pledge on hydra_node
    for each row execute function hydra_node_keeps_promises();

create function hydra_vote_refuse() returns trigger
language plpgsql as $$
begin
    raise exception 'votes stand: % refused', lower(tg_op)
        using errcode = 'check_violation', constraint = 'hydra_vote_stands';
end $$;
create trigger vote_stands before update or delete on hydra_vote
    for each row execute function hydra_vote_refuse();
