-- The queues of the rows.
insert into queues_queue (name, uuid, max_attempts, retry_backoff)
select 'queue-' || n, gen_random_uuid(), 3, '1 s' from generate_series(1, 4) n
