select queues_unpack_segments(array(select first from queues_segment));
drop view queues_openmessage;
drop function queues_change_openmessage();
drop function queues_unpack_segments(bigint[], boolean);
drop table queues_segmentsettlement;
drop table queues_segment;
