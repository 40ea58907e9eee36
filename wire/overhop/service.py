"""What the Overhop connections of one process share: the clerk, the heartbeat, the list of workers."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from queues.engine import ANYBODY, NOTHING, Address, Engine, Grant, Source, StoreUnavailable
from queues.reach import SYSTEM_QUEUE, Operation, Protocol
from wire.overhop.clerk import Clerk
from wire.overhop.codec import MAX_ENVELOPE
from wire.overhop.machine import Limits
from wire.overhop.payloads import JobNames
from wire.shares import Shares

if TYPE_CHECKING:
    from wire.overhop.session import OverhopSession

logger = logging.getLogger(__name__)

#: Seconds between two snapshots of the workers, for the admin.
SNAPSHOT = 1.0
#: Jobs that a snapshot lists for each worker, at most: the oldest.
MOST_JOBS = 100
#: Bytes of a QUEST that are not the job's payload, at most.
QUEST_OVERHEAD = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class OverhopOptions:
    """Sizes are bytes. `api_key` names the key whose patterns hold for all clients; None: anything goes."""

    limits: Limits = field(default_factory=Limits)
    max_envelope: int = MAX_ENVELOPE
    api_key: str | None = None
    #: Queues up to which clients may make more, and subscriptions of one connection.
    most_queues: int = 10_000
    most_subscriptions: int = 1000


def allows(grant: Grant, operation: Operation, queue: str) -> bool:
    """Whether it allows this on a queue over Overhop."""
    return grant.may(Protocol.OVERHOP, operation, "queue", queue.encode())


@dataclass(frozen=True, slots=True)
class Target:
    """A queue that jobs are given to."""

    id: int
    name: str
    source: Source
    names: JobNames


class OverhopService:
    """One process's; sessions are made by its listener."""

    def __init__(self, engine: Engine, options: OverhopOptions, shares: Shares) -> None:
        self.engine = engine
        self.shares = shares
        self.options = options
        self.clerk = Clerk(engine, self.largest_payload, options.most_queues)
        self.grant: Grant | None = None
        self.anonymous: set[OverhopSession] = set()
        self.workers: dict[str, OverhopSession] = {}
        self._targets: dict[str, Target] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._written: dict[str, str] = {}
        self._stale_grant = True
        self._key_changes = 0
        engine.on_key_change.append(self._key_changed)

    @property
    def largest_payload(self) -> int:
        """The most bytes that a job's payload may have."""
        return self.options.max_envelope - QUEST_OVERHEAD

    async def start(self) -> None:
        """Begin. Raises StoreUnavailable."""
        options = self.engine.options
        await self.engine.request(
            "ensure_queue", name=SYSTEM_QUEUE, max_attempts=options.max_attempts, retry_backoff=options.retry_backoff,
            ack_timeout=options.ack_timeout,
        )  # fmt: skip
        self._tasks = [
            asyncio.create_task(self._beat(), name="overhop heartbeat"),
            asyncio.create_task(self._write_snapshots(), name="overhop workers"),
        ]

    async def stop(self) -> None:
        """End; the connections are gone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.clerk.close()

    # Permissions.

    def _key_changed(self, key: int) -> None:
        """What clients may do has changed: they connect anew."""
        self._stale_grant = True
        self._key_changes += 1
        if self.grant is not None and self.grant.id == key:
            for session in (*self.anonymous, *self.workers.values()):
                session.connection.abort()

    async def may(self, operation: Operation, queue: str) -> bool:
        """Whether clients may do this with a queue. Raises StoreUnavailable."""
        return allows(await self.permissions(), operation, queue)

    async def permissions(self) -> Grant:
        """What holds for clients now. Raises StoreUnavailable."""
        if self.options.api_key is None:
            return ANYBODY
        while self._stale_grant:
            changes = self._key_changes
            self.grant = await self.engine.grant_named(self.options.api_key)
            self._stale_grant = self._key_changes != changes
            self._targets.clear()
        grant = self.grant
        return grant if grant is not None and grant.for_protocol(Protocol.OVERHOP) else NOTHING

    # Queues.

    def target(self, name: str) -> Target | None:
        """A queue that was looked up before and still is what it was."""
        target = self._targets.get(name)
        if target is None or (self._stale_grant and self.options.api_key is not None):
            return None
        policy = self.engine.known_policy(target.id)
        if policy is None or policy.name != name:
            del self._targets[name]
            return None
        return target

    async def find_target(self, name: str) -> Target | None:
        """Look a queue up; None when jobs may not be given to it. Raises QueueNotFound or StoreUnavailable."""
        if not await self.may(Operation.PUBLISH, name):
            return None
        policy = await self.engine.policy(name)
        if len(self._targets) > 100_000:
            self._targets.clear()
        key = None if self.grant is None else self.grant.id
        source = self.engine.source(Address("queue", name.encode()), key)
        self._targets[name] = Target(policy.id, name, source, JobNames(name, policy.uuid))
        return self._targets[name]

    # The clock.

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.options.limits.cadence)
            for session in tuple(self.anonymous):
                session.heartbeat(loop.time())

    async def _write_snapshots(self) -> None:
        node = 0
        while True:
            await asyncio.sleep(SNAPSHOT)
            if node != self.engine.node:  # after the database was away everything is written anew
                node, self._written = self.engine.node, {}
            if not self.workers and not self._written:
                continue
            now = {wid: json.dumps(session.snapshot()) for wid, session in self.workers.items()}
            changed = [json.loads(text) for wid, text in now.items() if self._written.get(wid) != text]
            gone = [wid for wid in self._written if wid not in now]
            try:
                if changed or gone:
                    await self.engine.request("write_workers", node=node, workers=json.dumps(changed), gone=gone)
                self._written = now
            except StoreUnavailable:
                pass  # the next one tells all of it
            except Exception:  # whatever it is, others will be written
                logger.exception("the list of workers was not written")


def oldest_jobs(session: OverhopSession) -> list[dict[str, Any]]:
    """The jobs that a worker has had longest."""
    return [
        {
            "jid": jid, "queue": job.claim.queue, "message": job.id, "attempt": job.attempt,
            "since": round(job.since, 3), "deadline": None if job.deadline is None else round(job.deadline, 3),
        }
        for jid, job in itertools.islice(session.assignments.items(), MOST_JOBS)
    ]  # fmt: skip
