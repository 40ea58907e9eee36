drop trigger key_announces on queues_apikey;
create trigger key_announces after insert or update or delete on queues_apikey
    for each row execute function queues_announce('key');
drop function queues_empty_mailbox(integer, boolean);
drop function queues_take_mailbox(text, bigint, integer, boolean, bigint);
drop function queues_requeue_letters(integer);
drop function queues_holds_mailbox(integer, bigint);
drop sequence queues_mailbox_connection;
