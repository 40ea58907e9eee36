-- The free places of each of these queues with a maximum length; locks their counts until commit,
-- so that two writers cannot both take the last place. One row a queue: id, room.
with locked as materialized (
    select queue_id from queues_queuecount where queue_id = any(%(queues)s::int[]) order by queue_id for update
)
select queue_id, queues_room(queue_id) from locked
