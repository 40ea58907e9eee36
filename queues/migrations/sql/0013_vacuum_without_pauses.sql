-- At full pace 20 MB a second of these tables are dead. With the pauses that autovacuum makes by default it took longer to
-- clean them than they took to grow: 7 GB for 4,000 messages after ten minutes.
alter table queues_message set (autovacuum_vacuum_cost_delay = 0);
alter table queues_queuetally set (autovacuum_vacuum_cost_delay = 0);
alter table queues_audithead set (autovacuum_vacuum_cost_delay = 0);
alter table queues_auditjournal set (autovacuum_vacuum_cost_delay = 0);
