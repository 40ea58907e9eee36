-- Tell of this node's client connections: the rows that changed, as a JSON array, the ids of those that are not listed
-- any more, and the totals by protocol.
with node as (
    select id from queues_node where id = %(node)s
), gone as (
    delete from queues_connection where node_id = %(node)s and id = any(%(gone)s::bigint[])
), totals as (
    insert into queues_connectiontotal (node_id, protocol, connections, in_rate, out_rate, at)
    select node.id, t.protocol, t.connections, t.in_rate, t.out_rate, statement_timestamp()
    from node, jsonb_to_recordset(%(totals)s::jsonb) as t (protocol text, connections integer, in_rate float8,
        out_rate float8)
    on conflict (node_id, protocol) do update set connections = excluded.connections, in_rate = excluded.in_rate,
        out_rate = excluded.out_rate, at = excluded.at
)
insert into queues_connection (id, node_id, protocol, address, name, key_id, connected_at, messages_in, messages_out,
    in_rate, out_rate, rate, unacked, held_bytes, queues, queues_unacked)
select c.id, node.id, c.protocol, c.address, c.name, c.key, to_timestamp(c.since), c.messages_in, c.messages_out,
    c.in_rate, c.out_rate, c.in_rate + c.out_rate, c.unacked, c.held_bytes, c.queues, c.queues_unacked
from node, jsonb_to_recordset(%(rows)s::jsonb) as c (id bigint, protocol text, address text, name text, key bigint,
    since float8, messages_in bigint, messages_out bigint, in_rate float8, out_rate float8, unacked bigint,
    held_bytes bigint, queues integer[], queues_unacked integer[])
on conflict (id) do update set name = excluded.name, key_id = excluded.key_id, messages_in = excluded.messages_in,
    messages_out = excluded.messages_out, in_rate = excluded.in_rate, out_rate = excluded.out_rate,
    rate = excluded.rate, unacked = excluded.unacked, held_bytes = excluded.held_bytes,
    queues = excluded.queues, queues_unacked = excluded.queues_unacked
