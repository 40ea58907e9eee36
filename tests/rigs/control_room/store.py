"""A store with so much of everything that pages which look at too much are slow. For an empty database.

The ids of what is named like the parameter `queue` begin at its value, since a sequence may have been used before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from queues.database.sql_files import titled_statements

HERE: Final = Path(__file__).parent
#: Rows of the large tables that one statement makes.
BATCH: Final = 200_000


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the store. Half of the messages are in the first queue, the others spread over all."""

    messages: int = 2_000_000
    queues: int = 2_000
    #: Connections; as many workers, peers and subscribers.
    connections: int = 500


#: The ids from which on there are rows: of each the statement after which they are there.
FIRST: Final[Mapping[str, tuple[str, str]]] = {
    "API keys": ("key", "select min(id) from queues_apikey where name like 'key-%%'"),
    "queues": ("queue", "select min(id) from queues_queue where name like 'queue-%%'"),
    "nodes": ("node", "select min(id) from queues_node where host like 'host-%%'"),
    "audit chains": ("chain", "select min(id) from queues_auditchain where name like 'chain-%%'"),
    "Hydra": ("hydra", "select min(id) from hydra_node where name like 'node-%%'"),
}


def fill(cursor: Any, size: Size, tell: Callable[[str], None]) -> None:
    """Fill a migrated, empty database, by a cursor of psycopg's or Django's. Raises their errors."""
    given: dict[str, Any] = asdict(size)
    for what, statement in titled_statements(HERE / "fill.sql").items():
        tell(f"making {what}")
        cursor.execute(statement, given)
        if what in FIRST:
            name, select = FIRST[what]
            cursor.execute(select, given)
            [given[name]] = cursor.fetchone()
    messages = titled_statements(HERE / "fill_messages.sql").values()
    for first in range(1, size.messages + 1, BATCH):
        last = min(first + BATCH, size.messages + 1) - 1
        tell(f"making messages {first:,} to {last:,}")
        for statement in messages:
            cursor.execute(statement, {**given, "first": first, "last": last})
    for what, statement in titled_statements(HERE / "fill_end.sql").items():
        tell(what)
        cursor.execute(statement, given)
