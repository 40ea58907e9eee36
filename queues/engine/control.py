"""What nodes tell each other, over LISTEN and NOTIFY. A notification may be lost: whoever needs it also polls."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from queues.engine.database import Connection

logger = logging.getLogger(__name__)

CHANNEL = "fivewire"
#: Seconds in which notifications of ready messages are gathered into one.
GATHER = 0.002

Handler = Callable[[Any, dict[str, Any]], None]


class Announcer:
    """Tells other nodes that messages became ready, at most every few milliseconds."""

    def __init__(self) -> None:
        self._ready: dict[int, int] = {}
        self._dead: set[int] = set()
        self._other: list[str] = []
        self._wake = asyncio.Event()

    def ready(self, queue: int, first_id: int) -> None:
        """Messages of this queue became ready, none with a lower id than this."""
        self._ready[queue] = min(first_id, self._ready.get(queue, first_id))
        self._wake.set()

    def dead(self, queue: int) -> None:
        """Dead letters came to this queue, or came back."""
        self._dead.add(queue)
        self._wake.set()

    def say(self, **message: Any) -> None:
        """Send one message to every node, this one included."""
        self._other.append(json.dumps(message))
        self._wake.set()

    async def run(self, connection: Connection) -> None:
        """Send for ever; ends by an exception when the connection is lost."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush(connection)
            await asyncio.sleep(GATHER)

    async def flush(self, connection: Connection) -> None:
        """Send what waits."""
        texts, self._other = self._other, []
        ready, self._ready = list(self._ready.items()), {}
        for start in range(0, len(ready), 200):
            texts.append(json.dumps({"ready": dict(ready[start : start + 200])}))
        dead, self._dead = sorted(self._dead), set()
        for start in range(0, len(dead), 500):
            texts.append(json.dumps({"dead": dead[start : start + 500]}))
        for text in texts:
            await connection.execute("select pg_notify(%s, %s)", (CHANNEL, text))


async def listen(connection: Connection, handlers: Mapping[str, Handler]) -> None:
    """Call the handler of each notification's first word, for ever. A lost connection ends it by an exception."""
    async for notification in connection.notifies():
        try:
            message = json.loads(notification.payload)
            word = next(iter(message))
            handler = handlers.get(word)
            if handler is not None:
                handler(message[word], message)
        except (ValueError, TypeError, KeyError, StopIteration) as error:
            logger.warning("a notification was not understood: %s (%s)", notification.payload[:200], error)
