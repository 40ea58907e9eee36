-- Consequences of the messages, which were stored without the broker.

-- counting messages
update queues_queuecount c set ready = m.ready, leased = m.leased, delayed = m.delayed, dead = m.dead,
    published = m.ready + m.leased + m.delayed + m.dead
from (select queue_id, count(*) filter (where state = 0) as ready, count(*) filter (where state = 1) as leased,
        count(*) filter (where state = 2) as delayed, count(*) filter (where state = 3) as dead
    from queues_message group by queue_id) as m
where m.queue_id = c.queue_id;

-- going on after their ids
select setval('queues_message_id', (greatest(nextval('queues_message_id'), 2 * %(messages)s) / 4096 + 1) * 4096);
