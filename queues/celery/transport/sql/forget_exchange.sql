-- Delete an exchange: all of its bindings.
delete from queues_kombubinding where exchange = %(exchange)s
