-- Notifications of lists are sent in parts: PostgreSQL refuses those of 8,000 bytes and more.

create function queues_notify_interest(word text, queues integer[], node integer) returns void
language plpgsql volatile as $$
-- Tell every node that a node serves these queues from now on ('interest') or no longer ('disinterest').
begin
    perform pg_notify('fivewire', json_build_object(word, json_agg(queue), 'node', node)::text)
    from unnest(queues) with ordinality as given (queue, n)
    group by (n - 1) / 500;
end $$;
