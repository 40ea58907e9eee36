"""Engines on the test database, and short ways to publish, consume and look."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from queues.engine.api import (
    Delivery,
    Destination,
    DetailedMessage,
    Engine,
    EngineError,
    PrefetchedQueue,
    Push,
    PushConsumer,
    PushRun,
    QueuePolicy,
    Waiter,
    options_from_settings,
)
from queues.engine.publish.publisher import Token
from tests.waiting import PATIENCE, Changes, until


class Producer:
    """Publishes and waits for the commit, as a session would."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failed: list[tuple[int, EngineError]] = []
        self._committed = asyncio.Event()
        engine.hold(self)

    def publish_failed(self, token: int, error: EngineError) -> None:
        self.failed.append((token, error))

    def release(self) -> None:
        self._committed.set()

    def send(self, address: str, *bodies: bytes, max_attempts: int | None = None) -> int:
        """Publish without waiting; returns the batch."""
        source = self.engine.publisher(Destination.parse(address))
        batch = 0
        for token, body in enumerate(bodies):
            batch = source.publish(body, self, token, max_attempts)
        return batch

    async def publish(self, address: str, *bodies: bytes, max_attempts: int | None = None) -> None:
        await self.wait(self.send(address, *bodies, max_attempts=max_attempts))

    async def publish_detailed(self, address: str, *messages: DetailedMessage) -> None:
        source = self.engine.publisher(Destination.parse(address))
        batch = 0
        for token, message in enumerate(messages):
            batch = source.publish_detailed(message, self, token)
        await self.wait(batch)

    async def wait(self, batch: int) -> None:
        """Wait until this batch is committed."""
        async with asyncio.timeout(PATIENCE):
            while self.engine.holds(batch):
                self._committed.clear()
                await self._committed.wait()


class Answered(Producer):
    """A producer that is told the ids of its messages."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.ids: list[int | None] = []

    def published(self, tokens: list[Token], ids: Sequence[int | None], queue: QueuePolicy) -> None:
        self.ids += ids


class Waiting(Waiter):
    """A consumer that waits for one message."""

    def __init__(self) -> None:
        super().__init__(key=None)
        self.delivered: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()

    def deliver(self, delivery: Delivery) -> None:
        self.delivered.set_result(delivery)

    def refuse(self) -> None:
        self.delivered.set_result(None)


class Consumer:
    """Takes messages one by one."""

    def __init__(self, buffer: PrefetchedQueue) -> None:
        self.buffer = buffer

    async def next(self, patience: float = PATIENCE) -> Delivery | None:
        """The next delivery; None when the queue refuses. Raises TimeoutError."""
        waiting = Waiting()
        self.buffer.wait(waiting)
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(waiting.delivered)
        except TimeoutError:
            self.buffer.cancel(waiting)
            if waiting.delivered.done():  # in the last moment
                return waiting.delivered.result()
            raise

    async def bodies(self, count: int, ack: bool = True) -> list[bytes]:
        taken = []
        for _ in range(count):
            delivery = await self.next()
            assert delivery is not None
            taken.append(delivery[1])
            if ack:
                assert self.buffer.deliveries.ack(delivery[0])
        return taken

    async def nothing(self, patience: float = 0.2) -> bool:
        """Whether no message comes in this time."""
        try:
            await self.next(patience)
        except TimeoutError:
            return True
        return False


async def bury(engine: Engine, queue: str, *payloads: bytes) -> None:
    """Publish messages to a queue and give up on them."""
    await Producer(engine).publish(queue, *payloads)
    buffer = await engine.queue(queue)
    for _ in payloads:
        delivery = await Consumer(buffer).next()
        assert delivery is not None
        buffer.deliveries.bury(delivery[0], "no")


class Worker(PushConsumer):
    """A consumer that is pushed to, without an API key."""

    def __init__(self, buffer: PrefetchedQueue) -> None:
        super().__init__(key=None)
        self.buffer = buffer
        self.pushed: list[Push] = []
        self.deadlines: list[float | None] = []
        self.lost: list[int] = []
        self._news = Changes()

    def push(self, runs: list[PushRun], deadline: float | None) -> None:
        self.pushed += chain.from_iterable(runs)
        self.deadlines.append(deadline)
        self._news.notify()

    def expired(self, tags: list[int]) -> None:
        self.lost += tags
        self._news.notify()

    def grant(self, credits: int) -> None:
        self.buffer.dispatcher().grant(self, credits)

    async def until(self, condition: Any) -> None:
        await self._news.until(condition)

    async def take(self, count: int) -> list[Push]:
        """The next pushes."""
        await self.until(lambda: len(self.pushed) >= count)
        taken, self.pushed = self.pushed[:count], self.pushed[count:]
        return taken

    async def bodies(self, count: int) -> list[bytes]:
        return [push.payload for push in await self.take(count)]


class Store:
    """The tables, seen from another connection."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.connection = psycopg.connect(conninfo, autocommit=True, row_factory=dict_row)

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        return self.connection.execute(sql.encode(), parameters).fetchall()

    async def change(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """Run a statement in a thread: it may wait for a lock that an engine holds until the event loop goes on."""
        return await asyncio.to_thread(self.rows, sql, *parameters)

    def queue(self, name: str, **policy: Any) -> int:
        columns: dict[str, Any] = {
            "name": name, "max_attempts": 3, "retry_backoff": "0.05 s", "ack_timeout": "60 s",
        } | policy  # fmt: skip
        sql = (
            f"insert into queues_queue (uuid, {', '.join(columns)}) "
            f"values (gen_random_uuid(), {', '.join(['%s'] * len(columns))}) returning id"
        )
        return int(self.rows(sql, *columns.values())[0]["id"])

    def insert(self, queue: int, body: bytes) -> None:
        """Store a message that no node is told of."""
        sql = "insert into queues_message (id, queue_id, state, payload) select nextval('queues_message_id'), %s, 0, %s"
        self.connection.execute(sql.encode(), (queue, body))

    def messages(self, queue: int) -> list[dict[str, Any]]:
        return self.rows("select * from queues_openmessage where queue_id = %s order by id", queue)

    def archived(self, queue: int) -> list[dict[str, Any]]:
        return self.rows("select * from queues_archive where queue_id = %s order by id", queue)

    def counts(self, queue: int) -> tuple[int, int, int, int]:
        row = self.rows("select * from queues_held(%s)", queue)[0]
        return row["ready"], row["leased"], row["delayed"], row["dead"]

    def cut(self, purpose: str = "%") -> None:
        """Terminate the engines' sessions in this database, or those of one purpose: a server has several databases,
        with engines of other tests."""
        self.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like %s",
            f"fivewire {purpose}",
        )

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until another process's work shows in the tables."""
        return await until(condition, what)


MakeEngine = Callable[..., Awaitable[Engine]]


@pytest.fixture
async def make_engine(transactional_db: None) -> AsyncIterator[MakeEngine]:
    """Start engines with options of their own; all are stopped at the end."""
    started: list[Engine] = []

    async def make(**options: Any) -> Engine:
        engine = Engine(dataclasses.replace(options_from_settings("test"), **options))
        await engine.start()
        started.append(engine)
        return engine

    yield make
    for engine in started:
        await engine.stop(5.0)


@pytest.fixture
async def engine(make_engine: MakeEngine) -> Engine:
    return await make_engine()


@pytest.fixture
def store(transactional_db: None) -> Any:
    store = Store(options_from_settings("test").conninfo)
    yield store
    store.connection.close()


@pytest.fixture
def producer(engine: Engine) -> Producer:
    return Producer(engine)
