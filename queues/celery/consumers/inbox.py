"""Messages from the engine's thread for the thread that serves a connection: a queue that can be waited on."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from typing import Any


class Inbox:
    """Items from other threads, in order. `fileno` is readable when there may be some."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._signalled = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        #: Closes both ends, at the latest with the last reference to the inbox.
        self.close = weakref.finalize(self, _close, self._reader, self._writer)

    def fileno(self) -> int:
        return self._reader

    def add(self, item: Any) -> None:
        """Add an item without a signal: the caller has `get` called itself."""
        self._items.append(item)

    def put(self, items: list[Any]) -> None:
        """Add items; any thread may."""
        self._items.extend(items)
        if not self._signalled and self.close.alive:
            self._signalled = True
            with contextlib.suppress(OSError):  # the pipe is full, so a signal is there already
                os.write(self._writer, b"\0")

    def get(self) -> Any | None:
        """The next item, or None. The thread that serves the connection calls it until None."""
        if self._items:
            return self._items.popleft()
        if self._signalled and self.close.alive:
            try:
                os.read(self._reader, 64)
            except BlockingIOError:  # the sender has set the flag and has yet to write
                return None
            self._signalled = False  # from here on `put` signals again
            if self._items:
                return self._items.popleft()
        return None


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
