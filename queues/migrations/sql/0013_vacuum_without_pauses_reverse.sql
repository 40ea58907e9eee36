alter table queues_message reset (autovacuum_vacuum_cost_delay);
alter table queues_queuetally reset (autovacuum_vacuum_cost_delay);
alter table queues_audithead reset (autovacuum_vacuum_cost_delay);
alter table queues_auditjournal reset (autovacuum_vacuum_cost_delay);
