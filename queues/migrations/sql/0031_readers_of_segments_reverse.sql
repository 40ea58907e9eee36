drop function queues_last_segment(integer, smallint, bigint, bigint);
drop function queues_segments_of(bigint[]);
-- A column is taken out of a view only with the view.
drop view queues_openmessage;
drop view queues_segmentmessage;

create view queues_openmessage as
-- Every message that is not finished, however it is stored.
select id, queue_id, state, attempts, max_attempts, node_id, producer_id, published_at, due_at, expires_at, dead_at,
    origin_id, tag, content, retry_interval, key, headers, error, payload
from queues_message
union all
select s.first + n - 1, queue_id, (case when node_id is null then 0 else 1 end)::smallint, 0::smallint, max_attempts,
    node_id, producer_id, published_at, null, null, null, null, null, content, null, null, null, null, body
from queues_segment s, unnest(bodies) with ordinality as slot (body, n)
where not exists (select from queues_segmentsettlement t where t.first = s.first and n - 1 between t.low and t.high);
alter view queues_openmessage alter column attempts set default 0;
alter view queues_openmessage alter column published_at set default now();
create trigger change_openmessage instead of insert or update or delete on queues_openmessage
    for each row execute function queues_change_openmessage();

create or replace function queues_drop_temporary(lock_class integer, among integer[]) returns integer
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
    update queues_queue set dead_letter_queue_id = null where dead_letter_queue_id = any(dropped);
    delete from queues_queuecount where queue_id = any(dropped);
    delete from queues_queue where id = any(dropped);
    return cardinality(dropped);
end $$;
