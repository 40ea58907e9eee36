-- A dead letter's way ends somewhere, and its target's maximum length holds for it too.

create function queues_dead_letters_end() returns trigger
language plpgsql as $$
-- Refuse a dead-letter target from which dead letters would come back. Two that are set at the same time wait for each other.
declare
    next integer := new.dead_letter_queue_id;
    seen integer[] := array[new.id];
begin
    perform pg_advisory_xact_lock(hashtext('queues_dead_letters'));
    while next is not null loop
        if next = any(seen) then
            raise exception 'the dead letters of queue % would come back to it', new.name
                using errcode = 'check_violation', constraint = 'queue_dead_letters_end';
        end if;
        seen := seen || next;
        next := (select dead_letter_queue_id from queues_queue where id = next);
    end loop;
    return null;
end $$;
create trigger queue_dead_letters_end after insert or update of dead_letter_queue_id on queues_queue
    for each row when (new.dead_letter_queue_id is not null) execute function queues_dead_letters_end();

create function queues_room_locked(queue integer) returns bigint
language plpgsql volatile as $$
-- As queues_room; others that ask wait until commit, so that two cannot both take the last place.
begin
    perform 1 from queues_queuecount where queue_id = queue for update;
    return queues_room(queue);
end $$;
