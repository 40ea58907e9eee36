-- Seconds until the next delayed message becomes due, null when there is none; and a time before which none is looked
-- for again soon, with room for transactions that are under way. None is looked for before `since`, and none of `skip`.
select (
    select extract(epoch from due_at - now())::float8 from queues_message
    where state = 2 and due_at > %(since)s::timestamptz
        and id <> all(%(skip)s::bigint[]) order by due_at limit 1
), (now() - interval '10 s')::text
