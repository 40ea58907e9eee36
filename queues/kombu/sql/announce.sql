-- Tell engines that messages are ready ($1), and those who consume from temporary queues ($2) directly. A transaction of
-- its own, that does not wait for the disk: commits that notify wait for each other, and these must be short.
select set_config('synchronous_commit', 'off', true), pg_notify('fivewire', $1),
    (select count(pg_notify('fivewire.queue.' || queue, '')) from unnest($2::int[]) as queue)
