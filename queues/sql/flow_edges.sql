-- The connections of these queues and topics, each kind in one JSON array: the subscriptions, routes and targets of
-- dead letters that begin or end at one of them, the first `most` of each.
select
    (select coalesce(json_agg(row_to_json(found)), '[]') from (
        select s.id, encode(s.topic, 'hex') as topic, q.name as queue
        from queues_subscription s join queues_queue q on q.id = s.queue_id
        where q.name = any(%(queues)s::text[]) or s.topic = any(%(topics)s::bytea[])
        order by s.id limit %(most)s
    ) found),
    (select coalesce(json_agg(row_to_json(found)), '[]') from (
        select id, source, target from queues_route
        where source = any(%(addresses)s::text[]) or target = any(%(addresses)s::text[])
        order by id limit %(most)s
    ) found),
    (select coalesce(json_agg(row_to_json(found)), '[]') from (
        select q.id, q.name as queue, t.name as target
        from queues_queue q join queues_queue t on t.id = q.dead_letter_queue_id
        where q.name = any(%(queues)s::text[]) or t.name = any(%(queues)s::text[])
        order by q.id limit %(most)s
    ) found)
