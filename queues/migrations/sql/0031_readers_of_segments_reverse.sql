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
