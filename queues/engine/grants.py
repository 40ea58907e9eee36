"""The API keys that sessions of this process use: their grants, kept as in the table.

A key is read when a session shows it and remembered by its digest. The keys in use are read anew after each connect,
when a notification says that one has changed, and once a minute; sessions hear of each that differs by `on_change`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from queues.database.sql_files import array
from queues.engine.access import Grant, key_digest
from queues.engine.clock import now, wait_for
from queues.engine.connections import Connections
from queues.engine.database import Connection
from queues.engine.health import Health
from queues.engine.options import EngineOptions

#: Seconds between two readings, however many notifications say that a key has changed; and without any.
GRANTS_APART = 0.1
GRANTS = 60.0


class Grants:
    """The grants of one engine."""

    def __init__(self, options: EngineOptions, health: Health, connections: Connections) -> None:
        self._peppers = options.peppers
        self._health = health
        self._connections = connections
        self._by_digest: dict[str, Grant] = {}
        #: The grants last told to sessions, by the key's id.
        self._told: dict[int, Grant] = {}
        self._changes = 0
        self._changed = asyncio.Event()
        #: The last log-in with each key that is not noted yet: when, over which protocol, from where.
        self._used: dict[int, tuple[float, str, str]] = {}
        self._noted = now()
        #: Called with the id of an API key that was changed or revoked.
        self.on_change: list[Callable[[int], None]] = []

    async def authenticate(self, key: str, protocol: str, address: str = "") -> Grant | None:
        """The grant of an API key, or None if it is not good for this protocol; `address` is the client's.

        Raises StoreUnavailable.
        """
        digests = [key_digest(key, pepper) for pepper in self._peppers]
        digest = digests[0]
        grant = self._by_digest.get(digest)
        while grant is None:
            changes = self._changes
            rows = await self._connections.look_up("key", digests=digests)
            if not rows:
                return None
            if self._changes == changes:  # else the reading may be outdated
                grant = self._by_digest[digest] = self._tell(*rows)
        if not grant.for_protocol(protocol):
            return None
        self._used[grant.id] = now(), protocol, address
        return grant

    async def named(self, name: str) -> Grant | None:
        """The grant of the API key of this name; None if there is none. Raises StoreUnavailable."""
        rows = await self._connections.look_up("key_named", name=name)
        return self._tell(*rows) if rows else None

    def _tell(self, row: tuple[Any, ...]) -> Grant:
        grant = self._told[row[0]] = _grant(row)
        return grant

    def look(self) -> None:
        """A key may have changed: read the keys in use at once. A log-in under way reads its key again, as does the
        next one with any key: its value may be another."""
        self._changes += 1
        self._by_digest.clear()
        self._changed.set()

    def forget(self, key: int) -> None:
        """A key was changed or revoked."""
        self._changes += 1
        self._told.pop(key, None)
        self._by_digest = {digest: grant for digest, grant in self._by_digest.items() if grant.id != key}
        for changed in self.on_change:
            self._health.guard("session", None, changed, key)

    async def run(self, connection: Connection) -> None:
        """Read the keys in use anew, for ever: at once, since a notification may have been missed while the database
        was away, and then from time to time. A key that was revoked or changed ends its sessions."""
        while True:
            self._changed.clear()
            known = dict(self._told)
            found = {row[0]: _grant(row) for row in await connection.rows("keys", {"ids": array(known)})}
            for key, grant in known.items():
                if found.get(key) != grant and self._told.get(key) is grant:
                    self.forget(key)
            self._by_digest.clear()  # a value that was accepted beside a new one may be so no longer
            await asyncio.sleep(GRANTS_APART)
            await wait_for(self._changed, GRANTS)

    async def note_uses(self, connection: Connection) -> None:
        """Write the last log-ins, for ever, at most once in `GRANTS` seconds."""
        while True:
            await self._note_uses(connection)
            await asyncio.sleep(GRANTS / 12)

    async def _note_uses(self, connection: Connection) -> None:
        time = now()
        if not self._used or time - self._noted < GRANTS:
            return
        used = dict(self._used)
        moments, protocols, addresses = (list(column) for column in zip(*used.values(), strict=True))
        ages = [time - moment for moment in moments]
        parameters = {"keys": array(used), "ages": ages, "protocols": protocols, "addresses": addresses}
        await connection.run("note_key_uses", parameters)
        self._noted = time
        self._used = {key: use for key, use in self._used.items() if used.get(key) != use}


def _grant(row: tuple[Any, ...]) -> Grant:
    protocols, publish, consume, manage = (tuple(patterns) for patterns in row[2:])
    return Grant(row[0], row[1], protocols, publish, consume, manage)
