-- Rows of connections vanish with their node. They are written anew every two seconds while clients are at work, and
-- clients that come and go decide how often: no log of that, and small pages that are cleaned at once.
alter table queues_connection
    add constraint queues_connection_node foreign key (node_id) references queues_node (id) on delete cascade;
alter table queues_connectiontotal
    add constraint queues_connectiontotal_node foreign key (node_id) references queues_node (id) on delete cascade;
alter table queues_connection set unlogged;
alter table queues_connectiontotal set unlogged;
alter table queues_connection set (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
alter table queues_connectiontotal set (fillfactor = 50);
