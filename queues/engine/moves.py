"""Mailboxes that connections take and leave, some at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from queues.engine.database import Connection
from queues.engine.mailbox import Mailbox
from queues.engine.statements import array, statement

#: Mailboxes taken or left in one transaction.
MOST_MOVES = 100


class Take(NamedTuple):
    """A connection wants a mailbox; `former` is the number that it had until the database was lost."""

    mailbox: Mailbox
    former: int | None = None


class Leave(NamedTuple):
    """A connection has ended."""

    mailbox: Mailbox


Move = Take | Leave


class Taken(NamedTuple):
    """What the store says: the queue and, unless it is refused, the number of the connection."""

    queue: int
    connection: int
    refused: str | None


def first_moves(items: Iterable[Any]) -> list[Move]:
    """The moves that come first and concern different names."""
    moves: dict[str, Move] = {}
    for item in islice(items, MOST_MOVES):
        if not isinstance(item, Take | Leave) or item.mailbox.name in moves:
            break
        moves[item.mailbox.name] = item
    return list(moves.values())


async def leave(connection: Connection, leaving: Sequence[Mailbox], node: int) -> None:
    """Leave mailboxes, unless they were taken over."""
    parameters = {
        "mailboxes": array(mailbox.queue for mailbox in leaving),
        "connections": array(mailbox.connection for mailbox in leaving),
        "node": node,
    }
    await connection.execute(statement("leave_mailboxes"), parameters)


async def in_order(connection: Connection, taking: Iterable[Take]) -> list[Take]:
    """In the order in which everybody locks mailboxes, by queue; new ones come last."""
    moves = list(taking)
    parameters = {"names": [move.mailbox.name for move in moves]}
    known: dict[str, int] = dict(await (await connection.execute(statement("mailbox_ids"), parameters)).fetchall())
    return sorted(moves, key=lambda move: (known.get(move.mailbox.name, inf), move.mailbox.name))


async def take(
    connection: Connection, taking: Sequence[Take], node: int, by_owner_only: bool
) -> tuple[list[Taken], list[str]]:
    """Take mailboxes; returns what became of each, and the names of all that are connected then."""
    async with connection.pipeline(), connection.transaction():
        cursors = [
            await connection.execute(
                statement("take_mailbox"),
                {
                    "name": move.mailbox.name, "key": move.mailbox.key, "node": node, "former": move.former,
                    "by_owner_only": by_owner_only,
                },
            )
            for move in taking
        ]  # fmt: skip
        naming = await connection.execute(statement("connected_names"))
        given = [Taken(*row) for cursor in cursors for row in await cursor.fetchall()]
        [(names,)] = await naming.fetchall()
    return given, sorted(names)
