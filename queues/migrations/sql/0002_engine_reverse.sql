-- Back to what Django's models alone make. The archive's rows are lost with its partitions.
drop trigger route_announces on queues_route;
drop trigger key_announces on queues_apikey;
drop trigger subscription_announces on queues_subscription;
drop trigger queue_announces on queues_queue;
drop function queues_announce();
drop function queues_concurrency_left(integer);
drop function queues_room(integer);
drop function queues_held(integer);
drop trigger queue_has_count on queues_queue;
drop function queues_add_count();
drop trigger route_changes_topology on queues_route;
drop trigger subscription_changes_topology on queues_subscription;
drop trigger queue_changes_topology on queues_queue;
drop function queues_topology_changed();
drop function queues_publish_version(integer);
drop function queues_may_lease(integer);
drop function queues_topology_version();
delete from queues_topology;
drop table queues_archive;
drop function queues_drop_archive_partitions(date);
drop function queues_make_archive_partitions(date, integer);
create table queues_archive (
    id bigint primary key, queue_id integer not null, outcome smallint not null, attempts smallint not null,
    producer_id bigint, consumer_id bigint, published_at timestamptz not null, delivered_at timestamptz,
    finished_at timestamptz not null, size integer not null, key text, headers jsonb, payload bytea
);
drop sequence queues_message_id;
