drop trigger queue_dead_letters_end on queues_queue;
drop function queues_dead_letters_end();
drop function queues_room_locked(integer);
