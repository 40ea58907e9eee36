"""Moving bytes, apart from any protocol: what a stuck or a departing broker looks like."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from tests.wire.scripted import PATIENCE, End, Expect, Hangup, ScriptedServer, Send, receive_exactly
from wire import transports
from wire.transports import AsyncLink, ConnectionLost, Link, ReplyTimeout, Steps

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
        link = Link(core, server.host, server.port, 10)
        assert link.run(core.ask(b"question", 6, None)) == b"answer"
        assert link.run(core.ask(b"", 7, 0.01)) is None
        link.close()
        with pytest.raises(ConnectionLost, match="the connection is closed"):
            link.run(core.ask(b"", 7, None))


async def test_an_asyncio_operation_waits_for_all_of_its_answer() -> None:
    core = Echoes()
    with ScriptedServer(Expect(b"question"), Send(b"ans"), Send(b"wer")) as server:
        link = AsyncLink(core, 10)
        await link.connect(server.host, server.port)
        assert await link.run(core.ask(b"question", 6, None)) == b"answer"
        assert await link.run(core.ask(b"", 7, 0.01)) is None
        await link.close()
        with pytest.raises(ConnectionLost, match="the connection is closed"):
            await link.run(core.ask(b"", 7, None))


def test_a_blocking_send_to_a_server_that_never_reads_is_given_up(deaf: tuple[str, int]) -> None:
    core = Echoes()
    link = Link(core, *deaf, PATIENCE)
    link._timeout = 0.2  # not for connecting
    core.outgoing += bytes(MORE_THAN_SOCKETS_BUFFER)
    with pytest.raises(ReplyTimeout, match=r"^the broker took nothing for 0\.2 s$"):
        link.send()
    with pytest.raises(ConnectionLost):
        link.send()


async def test_an_asyncio_send_to_a_server_that_never_reads_is_given_up(deaf: tuple[str, int]) -> None:
    core = Echoes()
    link = AsyncLink(core, PATIENCE)
    await link.connect(*deaf)
    link._timeout = 0.2  # not for connecting
    core.outgoing += bytes(MORE_THAN_SOCKETS_BUFFER)
    with pytest.raises(ReplyTimeout, match=r"^the broker took nothing for 0\.2 s$"):
        await link.send()
    with pytest.raises(ConnectionLost):
        await link.send()


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
        link = Link(core, host, port, PATIENCE)
        try:
            answer = link.run(core.ask(bytes(size), size, PATIENCE))
        finally:
            link.close()
            broker.join()
    assert answer == bytes(size)
    assert received == [size]


def test_a_blocking_close_waits_only_so_long(deaf: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "LINGER", 0.05)
    link = Link(Echoes(), *deaf, 10)
    link.close()
    link.close()  # and again does nothing
    with pytest.raises(ConnectionLost):
        link.send()


async def test_an_asyncio_close_waits_only_so_long(deaf: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "LINGER", 0.05)
    link = AsyncLink(Echoes(), 10)
    await link.connect(*deaf)
    await link.close()
    await link.close()
    with pytest.raises(ConnectionLost):
        await link.send()


def test_a_blocking_close_hears_the_broker_out() -> None:
    core = Echoes()
    with ScriptedServer(End(), Send(b"bye"), Hangup()) as server:
        Link(core, server.host, server.port, 10).close()
    assert core.received == b"bye"


async def test_an_asyncio_close_hears_the_broker_out() -> None:
    core = Echoes()
    with ScriptedServer(End(), Send(b"bye"), Hangup()) as server:
        link = AsyncLink(core, 10)
        await link.connect(server.host, server.port)
        await link.close()
    assert core.received == b"bye"


async def test_an_answer_that_comes_together_with_the_end_counts() -> None:
    core = Echoes()
    link = AsyncLink(core, 10)
    link.connection_made(Mock(spec=asyncio.Transport))
    operation = asyncio.create_task(link.run(core.ask(b"question", 6, None)))
    await asyncio.sleep(0)  # now it waits
    link.data_received(b"answer")
    link.connection_lost(None)
    assert await operation == b"answer"
    with pytest.raises(ConnectionLost):
        await link.run(core.ask(b"question", 7, None))


async def test_a_connection_lost_while_nothing_runs_is_told_to_the_next_operation() -> None:
    core = Echoes()
    with ScriptedServer(Hangup()) as server:
        link = AsyncLink(core, 10)
        await link.connect(server.host, server.port)
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await link.run(core.ask(b"", 1, None))
