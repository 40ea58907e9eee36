"""Mailboxes that connections take and leave, some at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from queues.database.sql_files import array
from queues.engine.database import Connection
from queues.engine.mailbox.mailbox import Mailbox, columns

#: Mailboxes taken or left in one transaction.
MAX_MOVES = 100


class Take(NamedTuple):
    """A connection wants a mailbox; `former` is the number that it had until the database was lost."""

    mailbox: Mailbox
    former: int | None = None


class Leave(NamedTuple):
    """A connection has ended."""

    mailbox: Mailbox


Move = Take | Leave


def is_again(item: object) -> bool:
    """Whether a mailbox is to be taken again, since the database was lost."""
    return isinstance(item, Take) and item.former is not None


def first_moves(items: Iterable[object]) -> list[Move]:
    """The moves that come first and concern different names."""
    moves: dict[str, Move] = {}
    for item in islice(items, MAX_MOVES):
        if not isinstance(item, Take | Leave) or item.mailbox.name in moves:
            break
        moves[item.mailbox.name] = item
    return list(moves.values())


async def leave(connection: Connection, leaving: Sequence[Mailbox], node: int) -> None:
    """Leave mailboxes, unless they were taken over."""
    await connection.run("leave_mailboxes", columns(leaving) | {"node": node})


async def take(
    connection: Connection, taking: Sequence[Take], node: int, most_names: int, by_owner_only: bool
) -> tuple[list[tuple[int | None, int, str | None]], list[str]]:
    """Take mailboxes; returns of each the queue, the number of the connection and why it is refused, and the names of
    all that are connected then."""
    parameters = {
        "names": [move.mailbox.name for move in taking], "keys": array(move.mailbox.key for move in taking),
        "formers": [move.former for move in taking], "node": node, "most": most_names, "by_owner_only": by_owner_only,
    }  # fmt: skip
    async with connection.pipeline(), connection.transaction():
        giving = await connection.run("take_mailboxes", parameters)
        naming = await connection.run("connected_names")
        given = await giving.fetchall()
        [(names,)] = await naming.fetchall()
    return given, sorted(names)
