drop function queues_leave_lines(bigint[], integer);
drop function queues_join_lines(integer[], bigint[], text[], integer);
drop function queues_elect_consumers(integer[]);
drop function queues_lock_lines(integer[]);
