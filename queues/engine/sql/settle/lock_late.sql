-- Lock messages that are acknowledged late, which claims or other nodes may be about to change: without waiting, so
-- that the two never wait for each other. `delivered` are Unix times by the server's clock, in the order of the ids: a
-- message that was published after the delivery is another one with the same id, and is left out. One row a message:
-- its id, whether it is locked; if not, try again.
with given as materialized (
    select * from unnest(%(ids)s::bigint[], %(delivered)s::float8[]) as g (id, at)
), locked as materialized (
    select id from queues_message where id = any(%(ids)s::bigint[]) for update skip locked
)
select m.id, m.id in (select id from locked)
from queues_message m join given on given.id = m.id
where m.id = any(%(ids)s::bigint[]) and m.published_at <= to_timestamp(given.at)
