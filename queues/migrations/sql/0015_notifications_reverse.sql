drop function queues_notify_interest(text, integer[], integer);
