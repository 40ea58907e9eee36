-- Where Spark puts rollups before one short statement takes them over. Rows lost with a crash are computed again.
create unlogged table queues_rollupdraft (
    run bigint not null, hour timestamptz not null, queue text not null, acknowledged bigint not null,
    expired bigint not null, purged bigint not null, dropped bigint not null, removed bigint not null,
    dead_letters bigint not null, attempts bigint not null, bytes bigint not null,
    deliver_p50 float8, deliver_p95 float8, deliver_p99 float8, settle_p50 float8, settle_p95 float8, settle_p99 float8,
    dead_reasons text not null, producers text not null, consumers text not null
);
create index rollupdraft_run on queues_rollupdraft (run);
