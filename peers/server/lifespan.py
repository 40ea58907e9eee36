"""Callbacks for the end of the process, under any ASGI server."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger(__name__)

#: Awaited one after the other when the server stops. An exception is logged, and the others are awaited all the same.
on_shutdown: list[Callable[[], Awaitable[None]]] = []


async def run_shutdown() -> None:
    """Await everything in `on_shutdown`."""
    for callback in on_shutdown:
        try:
            await callback()
        except Exception:
            logger.exception("%r failed while the server was stopping", callback)


async def application(
    scope: object, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """Answer a server's lifespan events. daphne has none: see `peers.server.daphne`."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await run_shutdown()
    await send({"type": "lifespan.shutdown.complete"})
