-- Celery's queues: the bindings of a queue go with it, and unused queues are dropped.

create function queues_forget_kombu() returns trigger
language plpgsql as $$
-- A queue is gone, and so are its bindings.
begin
    delete from queues_kombubinding where queue_id = old.id;
    delete from queues_temporaryqueue where queue_id = old.id;
    return null;
end $$;
create trigger queue_leaves_exchanges after delete on queues_queue for each row execute function queues_forget_kombu();

create function queues_see_temporary(lock_class integer) returns integer[]
language plpgsql volatile as $$
-- Note which temporary queues have consumers, by the locks that their sessions hold; returns those that have been
-- without for too long.
declare
    held integer[] := array(
        select objid::bigint::integer from pg_locks
        where locktype = 'advisory' and granted and objsubid = 2 and classid = lock_class::bigint::oid
            and database = (select oid from pg_database where datname = current_database()));
begin
    update queues_temporaryqueue set unused_since = null where queue_id = any(held) and unused_since is not null;
    update queues_temporaryqueue set unused_since = now() where queue_id <> all(held) and unused_since is null;
    return array(
        select queue_id from queues_temporaryqueue where queue_id <> all(held) and unused_since + expires < now());
end $$;

create function queues_drop_temporary(lock_class integer, among integer[]) returns integer
language plpgsql volatile as $$
-- Delete those of these temporary queues without a consumer, with their messages; returns how many. A new consumer
-- takes the lock first and then looks whether the queue is still there. Publishes are kept out meanwhile.
declare
    dropped integer[];
begin
    perform pg_advisory_xact_lock(hashtext('queues_topology'));
    dropped := array(
        select queue_id from queues_temporaryqueue
        where queue_id = any(among) and pg_try_advisory_xact_lock(lock_class, queue_id)
            and not exists (select from queues_held(queue_id) where leased > 0));
    delete from queues_message where queue_id = any(dropped) and state = 0;
    delete from queues_message where queue_id = any(dropped) and state = 2;
    delete from queues_message where queue_id = any(dropped) and state = 3;
    delete from queues_segment where slot = 0 and queue_id = any(dropped) and node_id is null;
    update queues_queue set dead_letter_queue_id = null where dead_letter_queue_id = any(dropped);
    delete from queues_queuecount where queue_id = any(dropped);
    delete from queues_queue where id = any(dropped);
    return cardinality(dropped);
end $$;
