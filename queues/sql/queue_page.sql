-- The page of a queue, without its counts, as JSON: nodes with consumers, workers with their credits, connections that
-- poll or receive from it, with what they hold of it; the peer or subscriber that it belongs to; the line of its
-- consumers if a single one is active, which comes first; its dead-letter queue, and how many went there.
select
    (select coalesce(json_agg(json_build_object('node', n.id, 'name', n.name, 'host', n.host, 'pid', n.pid,
            'since', extract(epoch from i.since)::float8) order by n.id), '[]')
        from queues_interest i join queues_node n on n.id = i.node_id where i.queue_id = %(queue)s),
    (select coalesce(json_agg(w order by w.since), '[]') from (
        select w.wid::text as wid, w.address, w.node_id as node, extract(epoch from w.connected_at)::float8 as since,
            (s->>'credits')::bigint as credits, (s->>'active')::bigint as active
        from queues_worker w, jsonb_array_elements(w.subscriptions) s where s->>'queue' = %(name)s limit %(most)s
    ) as w),
    (select coalesce(json_agg(json_build_object('id', k.id, 'protocol', k.protocol, 'address', k.address,
            'node', k.node_id, 'since', extract(epoch from k.connected_at)::float8, 'holds',
            k.queues_unacked[array_position(k.queues, %(queue)s)]) order by k.id), '[]')
        from (select * from queues_connection where %(queue)s = any(queues) order by id limit %(most)s) as k),
    (select json_build_object('name', m.name, 'id', m.queue_id, 'connected', m.node_id is not null, 'node', m.node_id,
            'since', extract(epoch from m.connected_at)::float8)
        from queues_mailbox m where m.queue_id = %(queue)s),
    (select json_build_object('topic', encode(s.topic, 'hex'), 'id', s.id, 'qos', s.qos, 'owner', k.name)
        from queues_subscription s left join queues_apikey k on k.id = s.owner_id where s.queue_id = %(queue)s),
    (select coalesce(json_agg(json_build_object('name', c.name, 'active', c.active, 'node', c.node_id,
            'connection', k.id, 'since', extract(epoch from coalesce(c.active_since, c.since))::float8)
            order by not c.active, c.id), '[]')
        from (select * from queues_consumer where queue_id = %(queue)s order by id limit %(most)s) as c
            left join queues_connection k on k.id = c.connection),
    (select json_build_object('target', t.name, 'carried', coalesce(c.carried, 0) + coalesce((
            select sum(carried) from queues_deadlettertally where queue_id = q.id and target_id = t.id), 0))
        from queues_queue q join queues_queue t on t.id = q.dead_letter_queue_id
            left join queues_deadlettercount c on c.queue_id = q.id and c.target_id = t.id
        where q.id = %(queue)s)
