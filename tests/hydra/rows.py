"""Stores on the test database, and what they have told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any

import psycopg
from psycopg.rows import dict_row

from hydra.errors import StoreError
from hydra.notifications import OperatorCommand
from hydra.protocol.effects import StoredNode
from hydra.snapshot import NodeSnapshot, snapshot
from hydra.storage.database import conninfo_from_settings
from hydra.storage.line_records import Line
from hydra.storage.node_row import NodeStore, StoreHandlers
from queues.models import Message
from tests.hydra.protocol.driver import Driven
from tests.waiting import PATIENCE, until


class Opened:
    """A store, and a list of what it has called."""

    def __init__(self) -> None:
        self.store: NodeStore
        self.lost: list[str] = []
        self.back = 0
        self.failed: list[StoreError] = []
        self.commands: list[OperatorCommand] = []

    async def open(self, name: str = "alpha", conninfo: str = "", **options: Any) -> Opened:
        handlers = StoreHandlers(
            on_lost=self.lost.append, on_back=self._came_back, on_failed=self.failed.append,
            on_command=self.commands.append,
        )  # fmt: skip
        options = {"timeout": 0.0, **options}
        self.store = await NodeStore.open(name, conninfo or conninfo_from_settings(), handlers, **options)
        return self

    def _came_back(self) -> None:
        self.back += 1


async def open_store(name: str = "alpha", **options: Any) -> Opened:
    """Begin to run a node; its key comes from its name."""
    return await Opened().open(name, **{"rng": Random(name), **options})


def rows(sql: str, *parameters: Any) -> list[dict[str, Any]]:
    """Run a statement in a session of its own, and return its rows."""
    session = psycopg.connect(conninfo_from_settings(), autocommit=True, row_factory=dict_row)
    with contextlib.closing(session):
        cursor = session.execute(sql.encode(), parameters)
        return cursor.fetchall() if cursor.description is not None else []


def end_sessions(node: str, purpose: str) -> int:
    """End a node's sessions, as a restart of the server does; returns how many."""
    return len(
        rows(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name like %s and datname = current_database()",
            f"fivewire hydra {node} {purpose}",
        )
    )


QUEUE = "hydra.recv"


def lines(*indexes: int, term: int = 3) -> list[Line]:
    return [(term, idx, f":a!b@c PRIVMSG #d :  line   {idx} ü") for idx in indexes]


def stored(queue: str = QUEUE) -> list[Line]:
    """The lines in a queue, in order."""
    found = Message.objects.filter(queue__name=queue).order_by("id")
    headers = [each.headers or {} for each in found]
    texts = [bytes(each.payload).decode() for each in found]
    return [(has["hydra.term"], has["hydra.idx"], text) for has, text in zip(headers, texts, strict=True)]


def look_at(driven: Driven) -> NodeSnapshot:
    return snapshot(driven.node, driven.now)


async def show(opened: Opened, driven: Driven) -> None:
    """Show what a node is like, and wait until it can be seen."""
    opened.store.status.listening(["127.0.0.1:6174"])
    opened.store.status.publish(look_at(driven))
    id = opened.store.lease.id
    seen = "select from hydra_node where id = %s and current_id = %s and term = %s and role = %s"
    status = look_at(driven)
    await until(lambda: rows(seen, id, status.id, opened.store.stored.term, status.role), "the status is shown")


@contextlib.contextmanager
def running(name: str, driven: Driven | None = None, pledge: int | None = None) -> Iterator[Opened]:
    """A node that runs in a thread, and shows what another is like, for tests that are no coroutines."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE)

    async def begin() -> Opened:
        opened = await open_store(name)
        if driven is not None:
            term, electorate = driven.node.term, driven.node.electorate
            await opened.store.write(StoredNode(opened.store.stored.voter, term, pledge, electorate))
            await show(opened, driven)
        return opened

    try:
        opened = call(begin())
        try:
            yield opened
        finally:
            call(opened.store.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
