-- Messages of segments are read by index: `segment` is the first id of a message's segment, or its own id if it has a row.
create view queues_segmentmessage as
-- The open messages of segments. With one state or the other, a condition on `state` leaves one of the two.
select s.first + n - 1 as id, queue_id, 0::smallint as state, max_attempts, null::integer as node_id, producer_id,
    published_at, content, body as payload, s.first as segment
from queues_segment s, unnest(bodies) with ordinality as slot (body, n) where node_id is null
union all
select s.first + n - 1, queue_id, 1::smallint, max_attempts, node_id, producer_id, published_at, content, body, s.first
from queues_segment s, unnest(bodies) with ordinality as slot (body, n)
where node_id is not null
    and not exists (select from queues_segmentsettlement t where t.first = s.first and n - 1 between t.low and t.high);

create or replace view queues_openmessage as
-- Every message that is not finished, however it is stored.
select id, queue_id, state, attempts, max_attempts, node_id, producer_id, published_at, due_at, expires_at, dead_at,
    origin_id, tag, content, retry_interval, key, headers, error, payload, id as segment
from queues_message
union all
select id, queue_id, state, 0::smallint, max_attempts, node_id, producer_id, published_at, null, null, null, null, null,
    content, null, null, null, null, payload, segment
from queues_segmentmessage;
alter view queues_openmessage alter column attempts set default 0;
alter view queues_openmessage alter column published_at set default now();

create function queues_segments_of(wanted bigint[]) returns bigint[]
language sql stable as $$
-- The values of `segment` of the messages with these ids: the ids, and the first ids of the segments that have them.
    select wanted || array(
        select s.first from unnest(wanted) as given (id), lateral (
            select first, count from queues_segment where first <= id order by first desc limit 1
        ) as s where id < s.first + s.count
    )
$$;

create function queues_last_segment(queue integer, wanted smallint, after bigint, messages bigint) returns bigint
language plpgsql stable set enable_sort = off as $$
-- The greatest value of `segment` of the next so many messages beyond the id `after`, of a queue (null: of all) in one
-- state (null: in any), or a greater one. Reads the segments up to there, some at a time, and no bodies. Without sorting,
-- whatever the statistics say: they are read in the order of an index, and no further.
declare
    beyond constant bigint := 9223372036854775807;
    chunk constant integer := 50;
    -- Compared as rows: only an index of the queue gives this order.
    statement constant text := format(
        'select s.first, count - coalesce((
            select sum(high - low + 1) from queues_segmentsettlement t where t.first = s.first), 0) as open
        from queues_segment s where %s and %s limit %s',
        case wanted when 0 then 'node_id is null' when 1 then 'node_id is not null' else 'true' end,
        case when queue is null then 's.first > $2 order by s.first'
            else '(queue_id, s.first) > ($1, $2) and (queue_id, s.first) <= ($1, $3) order by queue_id, s.first' end,
        chunk);
    total bigint := 0;
    read integer := chunk;
    found record;
begin
    if wanted not in (0, 1) then
        return beyond;
    end if;
    while read = chunk loop
        read := 0;
        for found in execute statement using queue, after, beyond loop
            read := read + 1;
            total := total + found.open;
            if total >= messages then
                return found.first;
            end if;
            after := found.first;
        end loop;
    end loop;
    return beyond;
end $$;
