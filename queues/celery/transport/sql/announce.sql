-- Tell engines something ($1, unless it is empty), and those who consume from temporary queues ($2) directly that
-- messages are ready. A transaction of its own, that does not wait for the disk: commits that notify wait for each
-- other, and these must be short.
select set_config('synchronous_commit', 'off', true), case when $1 <> '' then pg_notify('fivewire', $1)::text end,
    (select count(pg_notify('fivewire.queue.' || queue, '')) from unnest($2::int[]) as queue)
