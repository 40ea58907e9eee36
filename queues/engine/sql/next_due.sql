-- Seconds until the next delayed message becomes due; null when there is none.
select extract(epoch from due_at - now())::float8 from queues_message where state = 2 order by due_at limit 1
