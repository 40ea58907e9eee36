"""Which nodes take messages and hand them back: noted by triggers, for both may happen between two looks at a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.queues.engine.conftest import Store

#: A message that comes back from a consumer has another id, or an attempt more: its node did not hold it back.
INSTALL = (
    "create unlogged table model_lease (queue_id integer, body bytea, node_id integer)",
    """
    create function model_note_row() returns trigger language plpgsql as $$ begin
        insert into model_lease select new.queue_id, new.payload, node
        from unnest(array[new.node_id, case when old.id = new.id and old.attempts = new.attempts then old.node_id end])
            as node where node is not null;
        return null;
    end $$
    """,
    """
    create function model_note_segment() returns trigger language plpgsql as $$ begin
        insert into model_lease select new.queue_id, body, node
        from unnest(array[old.node_id, new.node_id]) as node,
            unnest(queues_bodies(new.slot, new.bodies, new.bodies_id)) as body
        where node is not null;
        return null;
    end $$
    """,
    """
    create trigger model_note after insert or update of node_id on queues_message
    for each row execute function model_note_row()
    """,
    """
    create trigger model_note after insert or update of node_id on queues_segment
    for each row execute function model_note_segment()
    """,
)
REMOVE = (
    "drop function model_note_row() cascade",
    "drop function model_note_segment() cascade",
    "drop table model_lease",
)


@contextmanager
def noted_leases(store: Store) -> Iterator[None]:
    """Note them for as long as the context lasts."""
    for sql in INSTALL:
        store.connection.execute(sql.encode())
    try:
        yield
    finally:
        for sql in REMOVE:
            store.connection.execute(sql.encode())


def noted(store: Store, queue: int) -> list[tuple[str, int]]:
    """Payloads and nodes of a queue's leases that began or ended since the last call."""
    rows = store.rows(
        "delete from model_lease where queue_id = %s returning encode(body, 'escape') as text, node_id", queue
    )
    return [(row["text"], row["node_id"]) for row in rows]
