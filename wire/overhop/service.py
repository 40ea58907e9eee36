"""State that the Overhop connections of one process share: queries, permissions, queues, heartbeat, list of workers."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from time import thread_time
from typing import Any, Protocol

from queues.engine.api import ANONYMOUS, NOTHING, Broker, Destination, Grant, Publisher, StoreUnavailable
from queues.permissions import rules
from queues.permissions.rules import SYSTEM_QUEUE, Operation
from wire.net.process_group import ProcessGroup
from wire.net.tasks import Tasks
from wire.overhop.codec.decoder import MAX_ENVELOPE
from wire.overhop.codec.fields import MAX_NAME, forbidden
from wire.overhop.machine import Limits
from wire.overhop.queries import Queries
from wire.server import ensure_queue
from wire.unconfirmed import UnconfirmedByClient

logger = logging.getLogger(__name__)

#: Seconds between two snapshots of the workers, for the admin; more with thousands of subscriptions, which take no more
#: than this share of a processor.
SNAPSHOT, SHARE = 1.0, 0.003
#: Bytes of a QUEST that are not the job's payload, at most.
QUEST_OVERHEAD = 2048
#: Names of queues that are remembered. No queue has a longer name than `MAX_NAME`.
MAX_PUBLISHERS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class OverhopOptions:
    """Sizes are bytes. `api_key` names the key whose patterns hold for all clients; None allows all."""

    limits: Limits = field(default_factory=Limits)
    max_envelope: int = MAX_ENVELOPE
    api_key: str | None = None
    #: Queues up to which clients may make more, and subscriptions of one connection.
    most_queues: int = 10_000
    most_subscriptions: int = 1000


def allows(grant: Grant, operation: Operation, queue: str) -> bool:
    """Return whether a grant allows this on a queue over Overhop."""
    return grant.may(rules.Protocol.OVERHOP, operation, "queue", queue.encode())


class ServedSession(Protocol):
    """A session as the service sees it."""

    def heartbeat(self, now: float) -> None:
        """Apply the time limits of registration."""

    def revoke(self) -> None:
        """End the connection: the API key has changed."""

    @property
    def version(self) -> object:
        """Another one whenever the snapshot may have become another."""

    def snapshot(self) -> dict[str, Any]:
        """Describe this worker for the admin."""


class OverhopService:
    """Shared by all sessions of a process. It keeps its sessions by what they are: anonymous, or workers by wid."""

    def __init__(
        self, engine: Broker, options: OverhopOptions, unconfirmed: UnconfirmedByClient,
        process_group: ProcessGroup | None = None,
    ) -> None:  # fmt: skip
        """`process_group` has the other processes of this `runwire`, if there are any."""
        self.engine = engine
        self.process_group = process_group
        self.unconfirmed = unconfirmed
        self.options = options
        self.queries = Queries(engine, self.largest_payload, options.most_queues)
        self.grant: Grant | None = None
        self._anonymous: set[ServedSession] = set()
        self._workers: dict[str, ServedSession] = {}
        self._publishers: dict[str, Publisher] = {}
        self._tasks = Tasks()
        #: The versions of the workers that the store was told of, by wid.
        self._written: dict[str, object] = {}
        self._stale_grant = True
        self._key_changes = 0
        engine.on_key_change.append(self._key_changed)

    @property
    def largest_payload(self) -> int:
        """The most bytes of a job's payload."""
        return self.options.max_envelope - QUEST_OVERHEAD

    async def start(self) -> None:
        """Begin. Raises StoreUnavailable."""
        await ensure_queue(self.engine, SYSTEM_QUEUE)
        self._tasks.spawn(self._beat(), "overhop heartbeat")
        self._tasks.spawn(self._write_snapshots(), "overhop workers")

    async def stop(self) -> None:
        """End; the connections are gone."""
        await self._tasks.end()
        self.queries.close()

    # Sessions.

    def connected(self, session: ServedSession) -> None:
        """A connection has been accepted; it is anonymous until it registers."""
        self._anonymous.add(session)

    def registered(self, session: ServedSession, wid: str) -> None:
        """A connection has become a worker."""
        self._anonymous.discard(session)
        self._workers[wid] = session

    def disconnected(self, session: ServedSession, wid: str) -> None:
        """A connection has ended; `wid` is empty if it was no worker."""
        self._anonymous.discard(session)
        self._workers.pop(wid, None)

    async def status(self) -> dict[str, Any]:
        """Answer STATUS."""
        return await self.queries.status(len(self._anonymous), len(self._workers))

    # Permissions.

    def _key_changed(self, key: int) -> None:
        """The permissions of clients have changed: they connect anew."""
        self._stale_grant = True
        self._key_changes += 1
        if self.grant is not None and self.grant.id == key:
            for session in (*self._anonymous, *self._workers.values()):
                self.engine.health.guard("session", session, session.revoke)

    async def may(self, operation: Operation, queue: str) -> bool:
        """Return whether clients may do this with a queue. Raises StoreUnavailable."""
        return allows(await self.permissions(), operation, queue)

    async def permissions(self) -> Grant:
        """Return the permissions of clients. Raises StoreUnavailable."""
        while self._stale_grant and self.options.api_key is not None:
            changes = self._key_changes
            self.grant = await self.engine.grant_named(self.options.api_key)
            self._stale_grant = self._key_changes != changes
            self._publishers.clear()
        return self._known_permissions()

    def _known_permissions(self) -> Grant:
        if self.options.api_key is None:
            return ANONYMOUS
        grant = self.grant
        return grant if grant is not None and grant.for_protocol(rules.Protocol.OVERHOP) else NOTHING

    # Queues.

    def publisher(self, name: str) -> Publisher | None:
        """The publisher of jobs for a queue, if there is one of this name: only the store knows. None while
        `permissions` have to be looked up. Raises DomainError when jobs may not be given to it."""
        if self._stale_grant and self.options.api_key is not None:
            return None
        publisher = self._publishers.get(name)
        if publisher is None:
            if not allows(self._known_permissions(), Operation.PUBLISH, name):
                self.engine.counts.forbidden += 1
                raise forbidden(name, f"jobs may not be given to queue {name} here")
            key = None if self.grant is None else self.grant.id
            publisher = self.engine.publisher(Destination("queue", name.encode()), key)
            if len(self._publishers) >= MAX_PUBLISHERS:
                self._publishers.clear()
            if len(name) <= MAX_NAME:
                self._publishers[name] = publisher
        return publisher

    # The clock.

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.options.limits.cadence)
            for session in tuple(self._anonymous):
                session.heartbeat(loop.time())

    async def _write_snapshots(self) -> None:
        node, spent = 0, 0.0
        while True:
            await asyncio.sleep(max(SNAPSHOT, spent / SHARE))
            began = thread_time()
            if node != self.engine.node:  # after the database was away everything is written anew
                node, self._written = self.engine.node, {}
            if not self._workers and not self._written:
                continue
            now = {wid: session.version for wid, session in self._workers.items()}
            changed = [self._workers[wid] for wid, version in now.items() if self._written.get(wid) != version]
            gone = [wid for wid in self._written if wid not in now]
            try:
                workers = json.dumps([session.snapshot() for session in changed])
                spent = thread_time() - began
                if changed or gone:
                    await self.engine.request("write_workers", node=node, workers=workers, gone=gone)
                self._written = now
            except StoreUnavailable:
                pass  # the next one tells all of it
            except Exception:  # the next snapshot may succeed
                logger.exception("the list of workers was not written")
