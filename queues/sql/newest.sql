-- An id, without a priority, above those of all messages there are; those that arrive later have greater ones.
select nextval('queues_message_id')
