-- Which nodes serve which queues.
select queue_id, node_id from queues_interest
