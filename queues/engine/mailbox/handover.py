"""Mailboxes that connections take and leave, some at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from queues.engine.database import Connection
from queues.engine.mailbox.mailbox import Mailbox
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


class Handover(NamedTuple):
    """The store's answer: the queue and, unless it is refused, the number of the connection."""

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


async def in_order(connection: Connection, taking: Iterable[Take], most_names: int) -> tuple[list[Take], list[Take]]:
    """In the order in which all nodes lock mailboxes, by queue; new ones come last. Then those that would make a name
    beyond the `most_names` of their API key (0: no limit), which are not to be taken."""
    moves = list(taking)
    parameters = {"names": [move.mailbox.name for move in moves]}
    known: dict[str, int] = dict(await (await connection.execute(statement("mailbox_ids"), parameters)).fetchall())
    new = [move for move in moves if move.mailbox.name not in known] if most_names else []
    beyond = await _beyond(connection, new, most_names) if new else []
    moves = [move for move in moves if move not in beyond]
    return sorted(moves, key=lambda move: (known.get(move.mailbox.name, inf), move.mailbox.name)), beyond


async def _beyond(connection: Connection, new: Iterable[Take], most_names: int) -> list[Take]:
    """The new names over their key's limit. Names that another node makes at this moment are not seen."""
    parameters = {"keys": array({move.mailbox.key for move in new})}
    cursor = await connection.execute(statement("names_owned"), parameters)
    owned: Counter[int] = Counter(dict(await cursor.fetchall()))
    beyond = []
    for move in new:
        owned[move.mailbox.key] += 1
        if owned[move.mailbox.key] > most_names:
            beyond.append(move)
    return beyond


async def take(
    connection: Connection, taking: Sequence[Take], node: int, by_owner_only: bool
) -> tuple[list[Handover], list[str]]:
    """Take mailboxes; returns the outcome of each, and the names of all that are connected then."""
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
        given = [Handover(*row) for cursor in cursors for row in await cursor.fetchall()]
        [(names,)] = await naming.fetchall()
    return given, sorted(names)
