-- Take messages that are ready, or leased to this node, out of the store by an operator's hand, `by` whom stands in the
-- audit chain of an audited queue; `outcome` is one of the archive's. Returns how many.
with recursive cause as (
    select %(outcome)s::smallint as outcome, 'purge' as event, %(by)s::text as by, false as named, false as whole
), picked as (
    select array(
        select id from queues_message
        where id = any(%(ids)s::bigint[]) and (state = 0 or node_id = %(node)s) for update
    ) as ids
),
\ir ../parts/remove.sql
select count(*) from gone
