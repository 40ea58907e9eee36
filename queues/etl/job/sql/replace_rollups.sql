-- Put the hours that this run has computed in the place of what was there. Dead letters that an operator has taken away
-- since stay counted.
insert into queues_rollup as r (hour, queue, acknowledged, expired, purged, dropped, removed, dead_letters, attempts,
    bytes, deliver_p50, deliver_p95, deliver_p99, settle_p50, settle_p95, settle_p99, dead_reasons, producers,
    consumers,
    computed_at)
select hour, queue, acknowledged, expired, purged, dropped, removed, dead_letters, attempts, bytes, deliver_p50,
    deliver_p95, deliver_p99, settle_p50, settle_p95, settle_p99, dead_reasons::jsonb, producers::jsonb,
    consumers::jsonb, now()
from queues_rollupdraft where run = %(run)s
on conflict (hour, queue) do update set acknowledged = excluded.acknowledged, expired = excluded.expired,
    purged = excluded.purged, dropped = excluded.dropped, removed = excluded.removed, attempts = excluded.attempts,
    bytes = excluded.bytes, deliver_p50 = excluded.deliver_p50, deliver_p95 = excluded.deliver_p95,
    deliver_p99 = excluded.deliver_p99, settle_p50 = excluded.settle_p50, settle_p95 = excluded.settle_p95,
    settle_p99 = excluded.settle_p99, producers = excluded.producers, consumers = excluded.consumers,
    computed_at = excluded.computed_at, dead_letters = greatest(r.dead_letters, excluded.dead_letters),
    dead_reasons = case when r.dead_letters > excluded.dead_letters then r.dead_reasons else excluded.dead_reasons end
