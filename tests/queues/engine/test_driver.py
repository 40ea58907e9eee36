"""The engine's connection: cancelled statements, a server that goes, notifications, and what the event loop watches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import uvloop
from psycopg.errors import DivisionByZero, OperationalError

from queues.engine.database import Connection, connect
from queues.engine.driver import EngineConnection
from tests.queues.engine.conftest import Store
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)

Run = Callable[[Coroutine[Any, Any, None]], None]

SLEEP = "select pg_sleep(600)"


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine in each of the event loops that engines run in."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None) as runner:
        yield lambda test: runner.run(asyncio.wait_for(test, PATIENCE))


@asynccontextmanager
async def connected(store: Store) -> AsyncIterator[Connection]:
    connection = await connect(store.conninfo, "test")
    try:
        yield connection
    finally:
        await connection.close()


async def one(connection: Connection, query: str, *parameters: Any) -> Any:
    row = await (await connection.execute(query.encode(), parameters)).fetchone()
    assert row is not None
    return row[0]


def state(store: Store, connection: Connection) -> str:
    """The state of the connection's session, as the server has it: active, idle …; empty when it has none."""
    rows = store.rows("select state from pg_stat_activity where pid = %s", connection.info.backend_pid)
    return str(rows[0]["state"]) if rows else ""


async def begin(store: Store, connection: Connection) -> asyncio.Task[Any]:
    """A statement that runs at the server."""
    asked = asyncio.create_task(one(connection, SLEEP))
    await until(lambda: state(store, connection) == "active", "the statement")
    return asked


def terminate(store: Store, pid: int) -> None:
    with psycopg.connect(store.conninfo, autocommit=True) as operator:
        operator.execute("select pg_terminate_backend(%s)", (pid,))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[EngineConnection]:
    """The connection of each event that the event loop reports."""
    seen: list[EngineConnection] = []
    go_on = EngineConnection._go_on

    def noted(connection: EngineConnection, ready: int) -> None:
        seen.append(connection)
        go_on(connection, ready)

    monkeypatch.setattr(EngineConnection, "_go_on", noted)
    return seen


async def turns(count: int = 50) -> None:
    """Let the event loop look at its descriptors so often."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_cancelled_statement_ends_at_the_server_and_the_next_one_has_its_own_answer(run: Run, store: Store) -> None:
    async def test() -> None:
        async with connected(store) as connection:
            asked = await begin(store, connection)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await until(lambda: state(store, connection) == "idle", "its end at the server")
            assert await one(connection, "select 7") == 7

    run(test())


def test_a_statement_that_takes_too_long_is_given_up_in_time(run: Run, store: Store) -> None:
    async def test() -> None:
        async with connected(store) as connection:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await one(connection, SLEEP)
            assert await one(connection, "select 7") == 7

    run(test())


def test_a_cancelled_pipeline_leaves_no_answer_behind(run: Run, store: Store) -> None:
    async def test() -> None:
        async with connected(store) as connection:

            async def several() -> None:
                async with connection.pipeline():
                    await connection.execute("select 1")
                    waiting = await connection.execute(SLEEP)
                    await connection.execute("select 2")
                    await waiting.fetchone()

            asked = asyncio.create_task(several())
            await until(lambda: state(store, connection) == "active", "the pipeline")
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert await one(connection, "select 7") == 7

    run(test())


def test_a_cancelled_transaction_is_rolled_back(run: Run, store: Store) -> None:
    queue = store.queue("orders")

    async def test() -> None:
        async with connected(store) as connection:

            async def rename() -> None:
                async with connection.transaction():
                    await connection.execute("update queues_queue set name = 'others' where id = %s", (queue,))
                    await connection.execute(SLEEP)

            asked = asyncio.create_task(rename())
            working = "select from pg_stat_activity where pid = %s and query = %s and state = 'active'"
            await until(lambda: store.rows(working, connection.info.backend_pid, SLEEP), "it")
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert await one(connection, "select name from queues_queue where id = %s", queue) == "orders"

    run(test())


def test_the_callers_of_a_server_that_goes_away_hear_of_it_and_further_connections_work(
    run: Run, store: Store
) -> None:
    async def test() -> None:
        async with connected(store) as connection:
            asked = await begin(store, connection)
            terminate(store, connection.info.backend_pid)
            with pytest.raises(OperationalError):
                await asked
            assert connection.closed
            with pytest.raises(OperationalError):
                await one(connection, "select 1")
            async with connected(store) as another:  # its descriptors are those that the first one had
                assert await one(another, "select 7") == 7

    run(test())


def test_a_server_that_closes_an_idle_connection_costs_one_look(
    run: Run, store: Store, events: list[EngineConnection]
) -> None:
    async def test() -> None:
        async with connected(store) as connection:
            assert await one(connection, "select 1") == 1
            events.clear()
            terminate(store, connection.info.backend_pid)
            await until(lambda: events, "the end of the connection")
            await turns()
            assert events == [connection]
            with pytest.raises(OperationalError):
                await one(connection, "select 1")

    run(test())


def test_a_statement_that_waits_while_its_connection_is_closed_fails(run: Run, store: Store) -> None:
    async def test() -> None:
        async with connected(store) as connection:
            asked, pid = await begin(store, connection), connection.info.backend_pid
            await connection.close()
            with pytest.raises(OperationalError, match="was closed"):
                await asked
            terminate(store, pid)  # a server that sleeps does not see that its client is gone

    run(test())


def test_a_notification_that_comes_while_nobody_listens_costs_one_look_and_is_heard_later(
    run: Run, store: Store, events: list[EngineConnection]
) -> None:
    async def test() -> None:
        async with connected(store) as connection, connected(store) as operator:
            await connection.execute("listen orders")
            events.clear()
            await operator.execute("notify orders, 'one'")
            await until(lambda: connection in events, "the notification")
            await turns()
            assert events.count(connection) == 1
            heard = connection.notifies()
            assert (await anext(heard)).payload == "one"
            await operator.execute("notify orders, 'two'")
            assert (await anext(heard)).payload == "two"
            await heard.aclose()

    run(test())


def test_a_notification_that_comes_with_the_answer_to_a_statement_is_not_lost(run: Run, store: Store) -> None:
    async def test() -> None:
        async with connected(store) as connection, connected(store) as operator:
            await connection.execute("listen orders")
            await connection.execute("begin")
            await operator.execute("notify orders, 'one'")
            await connection.execute("commit")
            async for notification in connection.notifies(stop_after=1):
                assert notification.payload == "one"

    run(test())


def test_a_statement_that_is_larger_than_the_sockets_buffers_is_sent_whole(run: Run, store: Store) -> None:
    async def test() -> None:
        async with connected(store) as connection:
            assert await one(connection, "select length(%s::bytea)", bytes(48 << 20)) == 48 << 20
            assert await one(connection, "select 7") == 7

    run(test())


def test_asyncios_loop_is_told_once_to_watch_for_a_large_result(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    go_on = EngineConnection._go_on

    def note(self: EngineConnection, ready: int) -> None:
        read.append(ready)
        go_on(self, ready)

    async def test() -> None:
        async with connected(store) as connection:
            await one(connection, "select 1")
            loop, watched = asyncio.get_running_loop(), list[int]()
            watch = loop.add_reader

            def note_watched(descriptor: int, *given: Any) -> None:
                watched.append(descriptor)
                watch(descriptor, *given)

            monkeypatch.setattr(loop, "add_reader", note_watched)
            read.clear()
            slow = await connection.execute("select repeat('x', 8192), pg_sleep(0.01) from generate_series(1, 30)")
            assert len(await slow.fetchall()) == 30
            assert len(read) > 1
            assert len(watched) <= 1

    monkeypatch.setattr(EngineConnection, "_go_on", note)
    asyncio.run(test())


@pytest.mark.parametrize(("turn", "given"), [(-1.0, 10), (3600.0, 0)])
def test_statements_that_need_not_wait_let_others_have_their_turn_after_a_while(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch, turn: float, given: int
) -> None:
    async def test() -> None:
        async with connected(store) as connection, connection.pipeline():
            await connection.execute("select 1")  # the first one has been a turn
            monkeypatch.setattr("queues.engine.driver.TURN", turn)
            had = 0

            async def another() -> None:
                nonlocal had
                while True:
                    await asyncio.sleep(0)
                    had += 1

            def sent_at_once() -> Generator[Any, Any, None]:
                yield from ()

            other = asyncio.create_task(another())
            for _ in range(10):
                await connection.wait(sent_at_once())
            other.cancel()
            assert had in (given, given - 1)

    run(test())


@pytest.mark.parametrize("lost", [False, True])
def test_a_connection_leaves_no_descriptor_open(run: Run, store: Store, lost: bool) -> None:
    async def test() -> None:
        async with connected(store) as connection:
            opened = connection.descriptors
            assert len(set(opened)) == 2
            if lost:
                terminate(store, connection.info.backend_pid)
                with pytest.raises(OperationalError):
                    await one(connection, "select 1")
        assert connection.descriptors == []
        for descriptor in opened:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)

    run(test())


def test_a_named_statement_works_after_a_transaction_was_rolled_back(run: Run, store: Store) -> None:
    async def test() -> None:
        async with connected(store) as connection:

            async def policies() -> list[Any]:
                return await (await connection.run("policies", {"ids": [queue]})).fetchall()

            async def fail() -> None:
                with pytest.raises(DivisionByZero):
                    async with connection.transaction():
                        await connection.execute("select 1 / %s", (0,))

            before = await policies()
            assert before
            await connection.execute("select 1")  # prepared by psycopg, which drops all that are at a rollback
            await fail()
            assert await policies() == before
            await connection.execute("select 1")
            await fail()
            async with connection.transaction():
                assert await policies() == before

    queue = store.queue("orders")
    run(test())


def test_a_named_statement_gives_in_a_pipeline_what_it_gives_alone(run: Run, store: Store) -> None:
    async def test() -> None:
        async with connected(store) as connection:
            parameters = {"ids": [queue]}
            alone = await (await connection.run("policies", parameters)).fetchall()
            async with connection.pipeline():
                both = [await connection.run("policies", parameters) for _ in range(2)]
                assert [await answer.fetchall() for answer in both] == [alone, alone]
            assert await (await connection.run("policies", parameters)).fetchone() == alone[0]
            assert await (await connection.run("policies", {"ids": []})).fetchone() is None

    queue = store.queue("orders")
    run(test())
