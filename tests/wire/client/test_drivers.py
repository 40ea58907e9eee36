"""Moving bytes, apart from any protocol: what a stuck or a departing broker looks like."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from tests.waiting import PATIENCE
from tests.wire.scripted import End, Expect, Hangup, ScriptedServer, Send, receive_exactly
from wire.client import drivers
from wire.client.drivers import AsyncClientDriver, ClientDriver
from wire.client.errors import ConnectionLost, ReplyTimeout
from wire.client.protocol import Steps

MORE_THAN_SOCKETS_BUFFER = 64 * 1024 * 1024


class Echoes:
    """A protocol in which anything is an answer."""

    def __init__(self) -> None:
        self.outgoing = bytearray()
        self.received = bytearray()

    def receive_data(self, data: bytes) -> None:
        self.received += data

    def ask(self, question: bytes, answer_size: int, timeout: float | None) -> Steps[bytes | None]:
        """Send, and return an answer of the given size, or None when the time is over."""
        self.outgoing += question
        while len(self.received) < answer_size:
            if not (yield timeout):
                return None
        return bytes(self.received)


@pytest.fixture
def deaf() -> Iterator[tuple[str, int]]:
    """The address of a server that never reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


def test_a_blocking_operation_waits_for_all_of_its_answer() -> None:
    core = Echoes()
    with ScriptedServer(Expect(b"question"), Send(b"ans"), Send(b"wer")) as server:
        driver = ClientDriver(core, 10)
        driver.connect(server.host, server.port)
        assert driver.run(core.ask(b"question", 6, None)) == b"answer"
        assert driver.run(core.ask(b"", 7, 0.01)) is None
        driver.close()
        with pytest.raises(ConnectionLost, match="the connection is closed"):
            driver.run(core.ask(b"", 7, None))


async def test_an_asyncio_operation_waits_for_all_of_its_answer() -> None:
    core = Echoes()
    with ScriptedServer(Expect(b"question"), Send(b"ans"), Send(b"wer")) as server:
        driver = AsyncClientDriver(core, 10)
        await driver.connect(server.host, server.port)
        assert await driver.run(core.ask(b"question", 6, None)) == b"answer"
        assert await driver.run(core.ask(b"", 7, 0.01)) is None
        await driver.close()
        with pytest.raises(ConnectionLost, match="the connection is closed"):
            await driver.run(core.ask(b"", 7, None))


def test_a_blocking_send_to_a_server_that_never_reads_is_given_up(deaf: tuple[str, int]) -> None:
    core = Echoes()
    driver = ClientDriver(core, PATIENCE)
    driver.connect(*deaf)
    driver._timeout = 0.2  # not for connecting
    core.outgoing += bytes(MORE_THAN_SOCKETS_BUFFER)
    with pytest.raises(ReplyTimeout, match=r"^the broker took nothing for 0\.2 s$"):
        driver.send()
    with pytest.raises(ConnectionLost):
        driver.send()


async def test_an_asyncio_send_to_a_server_that_never_reads_is_given_up(deaf: tuple[str, int]) -> None:
    core = Echoes()
    driver = AsyncClientDriver(core, PATIENCE)
    await driver.connect(*deaf)
    driver._timeout = 0.2  # not for connecting
    core.outgoing += bytes(MORE_THAN_SOCKETS_BUFFER)
    with pytest.raises(ReplyTimeout, match=r"^the broker took nothing for 0\.2 s$"):
        await driver.send()
    with pytest.raises(ConnectionLost):
        await driver.send()


def test_a_broker_that_writes_before_it_reads_is_read_from_while_sending() -> None:
    size = MORE_THAN_SOCKETS_BUFFER // 2
    received: list[int] = []

    def write_then_read() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE)
            connection.sendall(bytes(size))
            received.append(len(receive_exactly(connection, size)))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = threading.Thread(target=write_then_read)
        broker.start()
        core = Echoes()
        host, port = listener.getsockname()
        driver = ClientDriver(core, PATIENCE)
        driver.connect(host, port)
        try:
            answer = driver.run(core.ask(bytes(size), size, PATIENCE))
        finally:
            driver.close()
            broker.join()
    assert answer == bytes(size)
    assert received == [size]


def test_a_blocking_close_waits_only_so_long(deaf: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "LINGER", 0.05)
    driver = ClientDriver(Echoes(), 10)
    driver.connect(*deaf)
    driver.close()
    driver.close()  # and again does nothing
    with pytest.raises(ConnectionLost):
        driver.send()


async def test_an_asyncio_close_waits_only_so_long(deaf: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "LINGER", 0.05)
    driver = AsyncClientDriver(Echoes(), 10)
    await driver.connect(*deaf)
    await driver.close()
    await driver.close()
    with pytest.raises(ConnectionLost):
        await driver.send()


def test_a_blocking_close_hears_the_broker_out() -> None:
    core = Echoes()
    with ScriptedServer(End(), Send(b"bye"), Hangup()) as server:
        driver = ClientDriver(core, 10)
        driver.connect(server.host, server.port)
        driver.close()
    assert core.received == b"bye"


async def test_an_asyncio_close_hears_the_broker_out() -> None:
    core = Echoes()
    with ScriptedServer(End(), Send(b"bye"), Hangup()) as server:
        driver = AsyncClientDriver(core, 10)
        await driver.connect(server.host, server.port)
        await driver.close()
    assert core.received == b"bye"


async def test_an_answer_that_comes_together_with_the_end_counts() -> None:
    core = Echoes()
    driver = AsyncClientDriver(core, 10)
    driver.connection_made(Mock(spec=asyncio.Transport))
    operation = asyncio.create_task(driver.run(core.ask(b"question", 6, None)))
    await asyncio.sleep(0)  # now it waits
    driver.data_received(b"answer")
    driver.connection_lost(None)
    assert await operation == b"answer"
    with pytest.raises(ConnectionLost):
        await driver.run(core.ask(b"question", 7, None))


async def test_a_connection_lost_while_nothing_runs_is_told_to_the_next_operation() -> None:
    core = Echoes()
    with ScriptedServer(Hangup()) as server:
        driver = AsyncClientDriver(core, 10)
        await driver.connect(server.host, server.port)
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await driver.run(core.ask(b"", 1, None))
