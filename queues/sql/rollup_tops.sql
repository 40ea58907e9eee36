-- The most frequent reasons of dead letters, producers and consumers of some hours, of one queue or of all (''): kind,
-- name, number. What each hour's list left out is not in it.
select kind, name, number from (
    select v.kind, item->>'name' as name, sum((item->>'count')::bigint)::bigint as number,
        row_number() over (partition by v.kind order by sum((item->>'count')::bigint) desc, item->>'name') as place
    from queues_rollup r,
        lateral (values ('reasons', r.dead_reasons), ('producers', r.producers), ('consumers', r.consumers))
            as v (kind, items),
        jsonb_array_elements(v.items) as item
    where r.hour between %(since)s and %(until)s and (%(queue)s = '' or r.queue = %(queue)s)
    group by 1, 2
) as counted where place <= %(most)s order by kind, place
