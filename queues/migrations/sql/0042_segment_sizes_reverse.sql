set local lock_timeout = '10s';
alter table queues_segment drop column sizes;
alter table queues_segmentbody drop column sizes;
