-- The rows of the large store, but for messages: a statement each, in this order.

-- API keys
insert into queues_apikey (name, digest, hint, protocols, publish, consume, manage)
select 'key-' || n, md5(n::text) || md5((-n)::text), 'key', array['blipmq'], array['*'], array['*'], array['*']
from generate_series(1, %(connections)s) n;

-- uses of keys
insert into queues_apikeyuse (key_id, at, protocol, address) select id, now(), 'blipmq', '192.0.2.7'
from queues_apikey;

-- queues
insert into queues_queue (name, uuid, max_attempts, retry_backoff, ack_timeout, retention, paused)
select 'queue-' || n, gen_random_uuid(), 5, '1 s', '60 s', 'full', n %% 100 = 0
from generate_series(1, %(queues)s) n;

-- queues of peers
insert into queues_queue (name, uuid, kind, max_attempts, retry_backoff)
select '_peer/large-' || n, gen_random_uuid(), 'mailbox', 0, '0 s'
from generate_series(1, %(connections)s) n;

-- queues of subscribers
insert into queues_queue (name, uuid, kind, max_attempts, retry_backoff)
select '_subscription/large-' || n, gen_random_uuid(), 'subscription', 8, '0.1 s'
from generate_series(1, %(connections)s) n;

-- routes
insert into queues_route (source, target) select 'topic:prices-' || n, 'queue:queue-' || n
from generate_series(1, least(%(queues)s, 500)) n;

-- nodes
insert into queues_node (name, host, pid, first_message_id) select 'runwire', 'host-' || n, n, 0
from generate_series(1, 4) n;

-- interest of nodes
insert into queues_interest (queue_id, node_id)
select q.id, n.id from queues_queue q, queues_node n where q.kind = 'queue' and (q.id + n.id) %% 2 = 0;

-- workers
insert into queues_worker (wid, node_id, address, connected_at, requests, subscriptions, jobs, active)
select gen_random_uuid(), %(node)s + n %% 4, '192.0.2.7:' || n, now() - n * interval '1 s', n,
    json_build_array(json_build_object('sid', 's', 'queue', 'queue-' || 1 + n %% 20, 'credits', 10,
        'active', 1)),
    json_build_array(json_build_object('jid', gen_random_uuid(), 'queue', 'queue-1', 'message', n,
        'attempt', 1, 'since', extract(epoch from now()), 'deadline', null)), 1
from generate_series(1, %(connections)s) n;

-- connections
insert into queues_connection (id, node_id, protocol, address, name, key_id, connected_at, messages_in,
    messages_out, in_rate, out_rate, rate, unacked, held_bytes)
select (node << 32) + n, node, (array['overhop', 'blipmq', 'sspq', 'peerbus'])[1 + n %% 4], '192.0.2.7:' || n,
    '', %(key)s + n - 1, now() - n * interval '1 s', n, n, n, n, 2 * n, n, 0
from (select n, (%(node)s + n %% 4)::bigint as node from generate_series(1, %(connections)s) n) as new;

-- totals of connections
insert into queues_connectiontotal (node_id, protocol, connections, in_rate, out_rate)
select node_id, protocol, count(*), 1, 1 from queues_connection group by node_id, protocol;

-- peers
insert into queues_mailbox (queue_id, name, owner_id, node_id, connection, connected_at)
select q.id, substr(q.name, 7), k.id, %(node)s + q.id %% 4, q.id, now()
from queues_queue q join queues_apikey k on k.name = 'key-' || substr(q.name, 13) where q.kind = 'mailbox';

-- subscriptions
insert into queues_subscription (topic, qos, queue_id, owner_id)
select convert_to('prices-' || q.id %% 50, 'UTF8'), 1, q.id, k.id
from queues_queue q join queues_apikey k on k.name = 'key-' || substr(q.name, 21)
where q.kind = 'subscription';

-- partitions
select queues_make_archive_partitions((now() at time zone 'UTC')::date - 1, 2);

-- samples of two hours of all queues
insert into queues_queuesample (queue, at, seconds, ready, leased, delayed, dead, peak, published, settled,
    died)
select q.id, date_trunc('minute', now()) - n * interval '1 minute', 60, 500 + n, 1, 2, 3, 500, 100, 90, 0
from queues_queue q, generate_series(0, 119) n where q.kind = 'queue';

-- samples of a day of the first queues
insert into queues_queuesample (queue, at, seconds, ready, leased, delayed, dead, peak, published, settled,
    died)
select q.id, date_trunc('minute', now()) - n * interval '1 minute', 60, 500 + n, 1, 2, 3, 500, 100, 90, 0
from queues_queue q, generate_series(130, 1500) n where q.id < %(queue)s + 50;

-- samples of a month
insert into queues_queuesample (queue, at, hourly, seconds, ready, leased, delayed, dead, peak, published,
    settled, died)
select case q when 0 then 0 else %(queue)s + q - 1 end, date_trunc('hour', now()) - n * interval '1 hour', true,
    3600, 500 + n, 1, 2, 3, 500, 100, 90, 0
from generate_series(0, 50) q, generate_series(26, 720) n;

-- samples of all queues together
insert into queues_queuesample (queue, at, seconds, ready, leased, delayed, dead, peak, published, settled,
    died, database_bytes)
select 0, date_trunc('minute', now()) - n * interval '1 minute', 60, 50000 + n, 1, 2, 3, 500, 100, 90, 0,
    1e9 - n
from generate_series(0, 1500) n;

-- marks of samples
insert into queues_samplemark (queue, at, ready, leased, delayed, dead, published, settled)
select id, now() - interval '30 s', 0, 0, 0, 0, 0, 0 from queues_queue union all
select 0, now() - interval '30 s', 0, 0, 0, 0, 0, 0
on conflict (queue) do update set at = excluded.at;

-- tallies
insert into queues_queuetally (queue_id, published, ready) select id, 1, 1 from queues_queue;

-- periodic jobs
insert into queues_periodicjob (name, cron, timezone, queue_id, enabled, payload)
select 'job-' || id, '0 3 * * *', 'UTC', id, true, '{}' from queues_queue where id < %(queue)s + 200;

-- bulk operations
insert into queues_bulkoperation (action, criteria, target, by, state, cursor, high, looked, done, skipped,
    error, ended_at)
select 'move', '{"queue": "queue-1"}', 'queue-2', 'admin', 'done', '', 1, 10, 10, 0, '', now()
from generate_series(1, 10000) n;

-- ETL runs
insert into queues_etlrun (state, trigger, output, options, figures, warnings, queued_at, started_at, ended_at,
    window_from, window_to, host, stage, error, log)
select 'succeeded', 'hourly', '/output', '{}', '{}', '[]', at, at, at, '', '', 'host', '', '', ''
from (select now() - n * interval '1 hour' as at from generate_series(1, 2000) n) hours;

-- figures of ETL
insert into queues_rollup (hour, queue, acknowledged, expired, bytes, deliver_p50, dead_reasons, producers,
    consumers)
select date_trunc('hour', now()) - n * interval '1 hour', 'queue-' || q, 100, 1, 10000, 0.01,
    '[{"name": "no such account", "count": 3}]', '[{"name": "key-1", "count": 90}]',
    '[{"name": "key-2", "count": 80}]'
from generate_series(1, %(queues)s) q, generate_series(1, 48) n;

-- audit chains
insert into queues_auditchain (name) select 'chain-' || n from generate_series(1, 200) n;

-- audit rows
insert into queues_audit (chain_id, seq, at, event, record_id, sender, recipient, hash)
select %(chain)s, n, now(), case when n %% 3 = 0 then 'deliver' else 'send' end, 'message:' || n, 'alice',
    'bob', decode(md5(n::text) || md5(n::text), 'hex')
from generate_series(0, %(messages)s / 10) n;

-- heads of audit chains
insert into queues_audithead (chain_id, next_seq, hash, last_at)
select id, case when id = %(chain)s then %(messages)s / 10 + 1 else 0 end, decode(repeat('00', 32), 'hex'),
    now()
from queues_auditchain;

-- verifications
insert into queues_auditverification (chain_id, ok, rows, finding, seconds)
select c.id, true, 10, '', 0.1 from queues_auditchain c, generate_series(1, 20) n;

-- lines of workers
insert into queues_joblog (queue_id, message_id, line) select %(queue)s, n, 'halfway'
from generate_series(1, 20000) n;

-- Hydra
insert into hydra_node (name, voter, term, seen_at) select 'node-' || n, lpad(n::text, 16, '0'), 1, now()
from generate_series(1, 9) n;

-- events of Hydra
insert into hydra_event (node_id, at, kind, term, text)
select %(hydra)s + n %% 9, now() - n * interval '1 s', 'leading', n / 100, 'it leads'
from generate_series(1, 9000) n;
