"""Work in parts: a part that fails for a reason of its own is taken apart until one item is left, which is set aside.

Every batch of the engine is written by `carry_out`. Work that failed once for an unforeseen reason is never tried as it
was: it is halved or refused. Work left in `parts` when a connection is lost, or when the server refuses everything for
now, has not been done.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from queues.backoff import Backoff
from queues.engine.database import Connection
from queues.engine.faults import MAX_REPEATS, Fault, fault_of, is_idle, told
from queues.engine.health import Health, Trouble

P = TypeVar("P")

RETRY = Backoff(0.05, 5.0)
#: Seconds before work is repeated that another transaction was in the way of.
REPEAT_AFTER = 0.02


class StoreBackoff:
    """Pauses that grow until something has really been done."""

    def __init__(self) -> None:
        self._delays = RETRY.delays()

    def reset(self) -> None:
        """Something has been written."""
        self._delays = RETRY.delays()

    async def after(self, refused: Exception | None, health: Health, trouble: Trouble) -> None:
        """A try has ended: all is done, or the server refuses the rest for now, which is a trouble of /readyz."""
        if refused is None:
            self.reset()
            health.end(trouble)
        else:
            health.begin(trouble, told(refused))
            await self.wait()

    async def wait(self) -> None:
        """Wait before the next try."""
        await asyncio.sleep(next(self._delays))


async def carry_out(
    parts: deque[P],
    write: Callable[[P], Awaitable[None]],
    halve: Callable[[P, Exception], Sequence[P]],
    refuse: Callable[[P, Exception], None],
    connection: Connection,
    *,
    in_order: bool = True,
) -> Exception | None:
    """Write every part, taking each out of `parts` when it is done. `halve` gives smaller ones, or none of a part that
    is one item: then `refuse` has the last word on it. With `in_order` no part is written before an earlier one.

    Returns the error by which the server refuses the rest for now. Raises when the connection is lost.
    """
    refused: Exception | None = None
    put_off = 0
    while put_off < len(parts):
        part = parts[0]
        error = await _attempt(part, write, connection)
        if not parts or parts[0] is not part:  # done, and told so; or given up meanwhile
            continue
        if error is None:
            parts.popleft()
        elif fault_of(error, connection) is Fault.REFUSED:
            refused = error
            if in_order:
                break
            parts.rotate(-1)
            put_off += 1
        else:
            parts.popleft()
            smaller = halve(part, error)
            if smaller:
                parts.extendleft(reversed(smaller))
            else:
                refuse(part, error)
    return refused


async def _attempt(part: P, write: Callable[[P], Awaitable[None]], connection: Connection) -> Exception | None:
    """Write a part, again if that may help; returns why it cannot be done."""
    repeats = 0
    while True:
        try:
            await write(part)
        except Exception as error:
            fault = fault_of(error, connection)
            if fault is Fault.LOST or not is_idle(connection):
                raise
            if fault is not Fault.REPEAT or repeats == MAX_REPEATS:
                return error
            repeats += 1
            await asyncio.sleep(REPEAT_AFTER * repeats * random.uniform(0.5, 1.5))
        else:
            return None


def halves(items: Sequence[P], _: object = None) -> list[list[P]]:
    """A list in two, or nothing of a single item: for `carry_out`, whatever the error."""
    middle = len(items) // 2
    return [list(items[:middle]), list(items[middle:])] if middle else []
