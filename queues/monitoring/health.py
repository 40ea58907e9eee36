"""Whether this process can do its work: the answer of /readyz, for the site and for listener processes."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import cache
from http import HTTPStatus
from typing import NamedTuple

import psycopg
from django.db.migrations.loader import MigrationLoader

from queues.database import hosts
from queues.database.parameters import primary_parameters
from queues.engine.api import Broker, running

logger = logging.getLogger(__name__)

#: Seconds within which the database must have answered. Connections of their own, so that a database that
#: hangs cannot hold up anything but the answer.
READY_TIMEOUT = 3.0
#: Seconds for which an answer holds.
READY_AGE = 1.0


_looking: asyncio.Task[list[str]] | None = None
_looked: tuple[float, list[str]] | None = None
_logged = ""


class Readiness(NamedTuple):
    """The answer of /readyz: sentences without names of hosts and users."""

    #: The reasons to give the process no work now; empty when it is ready.
    reasons: list[str]
    #: Warnings for the operator of a process that works.
    notes: list[str]

    @property
    def status(self) -> HTTPStatus:
        """The status of the answer."""
        return HTTPStatus.SERVICE_UNAVAILABLE if self.reasons else HTTPStatus.OK

    @property
    def page(self) -> dict[str, object]:
        """The object of the answer."""
        page: dict[str, object] = {"status": "unready" if self.reasons else "ready", "reasons": self.reasons}
        return page | {"notes": self.notes} if self.notes else page


async def readiness(*engines: Broker) -> Readiness:
    """Whether the process can do its work; `engines` are asked besides those that run.

    What its engines know comes first. While one of them works, a connection of this question's own that the database
    does not take, since all are taken, says nothing. Any client may ask: the database's answer is at most
    :data:`READY_AGE` old.
    """
    asked = dict.fromkeys((*running, *engines))
    reasons = [reason for engine in asked for reason in engine.unready_reasons()] + await _looked_up()
    notes = [note for engine in asked for note in engine.notes()] + hosts.warnings()
    return Readiness(list(dict.fromkeys(reasons)), list(dict.fromkeys(notes)))


async def _looked_up() -> list[str]:
    global _looking
    if _looked is not None and time.monotonic() - _looked[0] < READY_AGE:
        return list(_looked[1])
    if _looking is None or _looking.done() or _looking.get_loop() is not asyncio.get_running_loop():
        _looking = asyncio.create_task(_note(), name="readiness")
    return list(await asyncio.shield(_looking))


async def _note() -> list[str]:
    global _looked
    reasons = await _look()
    _looked = time.monotonic(), reasons
    return reasons


async def _look() -> list[str]:
    try:
        async with asyncio.timeout(READY_TIMEOUT):
            missing = migrations_on_disk() - await _applied_migrations()
    except TimeoutError:
        if _served():
            return []
        return [f"The database has not answered within {READY_TIMEOUT:g} s."]
    except psycopg.errors.UndefinedTable:
        return ["The database has no tables yet: run `manage.py migrate`."]
    except psycopg.Error as error:
        log_once(" ".join(str(error).split()))
        if _served():
            return []
        return ["The database cannot be reached; the log says why."]
    if missing:
        names = ", ".join(".".join(name) for name in sorted(missing))
        return [f"Migrations are not applied: {names}. Run `manage.py migrate`."]
    log_once("")
    return []


def _served() -> bool:
    """Whether an engine of this process has the database's answers: it reports faults by itself."""
    return any(engine.available for engine in tuple(running))


def log_once(problem: str) -> None:
    """Log the fault, once."""
    global _logged
    if problem and problem != _logged:
        logger.warning("the database cannot be reached: %s", problem)
    _logged = problem


@cache
def migrations_on_disk() -> frozenset[tuple[str, str]]:
    """Application and name of every migration this code comes with."""
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).disk_migrations)


async def _applied_migrations() -> set[tuple[str, str]]:
    parameters = await asyncio.to_thread(primary_parameters)
    async with await psycopg.AsyncConnection.connect(**parameters) as connection:
        cursor = await connection.execute("SELECT app, name FROM django_migrations")
        return {(str(app), str(name)) for app, name in await cursor.fetchall()}
