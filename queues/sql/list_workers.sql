-- The number of workers that subscribe to each of these queues, by the queues' ids; queues without one are left out.
select q.id, count(*) from queues_worker w, jsonb_array_elements(w.subscriptions) s
join queues_queue q on q.name = s->>'queue' where q.id = any(%(queues)s::int[]) group by q.id
