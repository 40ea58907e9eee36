-- Of these queues, those with ready messages, by their counts: for a node that heard of none.
select q from unnest(%(queues)s::int[]) as q, lateral queues_held(q) as h where h.ready > 0
