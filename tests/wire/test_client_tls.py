"""The clients over TLS, against the shared listener: whom they trust, who trusts them, and what is said if not."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE
from tests.wire.client.test_drivers import Echoes
from tests.wire.net.test_tls import Authority
from tests.wire.scripted import CLIENT_KINDS, clients
from tests.wire.serving import EVENT_LOOPS, Recorder, Server, serving
from wire.blipmq import client as blipmq
from wire.blipmq import codec as blipmq_codec
from wire.client.drivers import AsyncClientDriver, ClientDriver
from wire.client.errors import ConnectionLost, ReplyTimeout, TlsFailed
from wire.client.protocol import TlsCore
from wire.net.connection import Connection
from wire.net.limits import Refusal
from wire.net.tls import server_context
from wire.sspq import client as sspq
from wire.sspq import codec as sspq_codec

SUBSCRIPTION = 42


class Blip(Recorder):
    """As much of a BlipMQ broker as a client needs: one subscription, which gets what is published."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.decoder = blipmq_codec.Decoder()
        self.published: deque[bytes] = deque()

    def data_received(self, data: bytes) -> None:
        for kind, correlation_id, payload in self.decoder.feed(data):
            if kind in (blipmq_codec.HELLO, blipmq_codec.AUTH):
                self.connection.write(blipmq_codec.encode_ack(correlation_id, 0))
            elif kind == blipmq_codec.SUBSCRIBE:
                self.connection.write(blipmq_codec.encode_ack(correlation_id, SUBSCRIPTION))
            elif kind == blipmq_codec.PUBLISH:
                self.published.append(bytes(payload))
            elif kind == blipmq_codec.PING:
                self.connection.write(blipmq_codec.encode_pong(correlation_id))
            elif kind == blipmq_codec.POLL and self.published:
                _, topic, body = blipmq_codec.parse_delivery(self.published.popleft())
                self.connection.write(blipmq_codec.encode_publish(1, 1, topic, body))


class Sspq(Recorder):
    """As much of an SSPQ broker as a client needs: what it sends, it gets."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.decoder = sspq_codec.Decoder(sspq_codec.MAX_PAYLOAD)
        self.sent: deque[bytes] = deque()

    def data_received(self, data: bytes) -> None:
        for kind, _, payload in self.decoder.feed(data):
            if kind == sspq_codec.SEND:
                self.sent.append(bytes(payload))
                self.data += payload
            elif kind == sspq_codec.RECEIVE:
                self.connection.write(sspq_codec.encode_send(self.sent.popleft(), 3))


class Running:
    """A listener in a thread of its own."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.host, self.port = server.address.host, server.address.port
        self._loop = loop

    def wait(self, happens: Coroutine[Any, Any, Any]) -> Any:
        """Wait for something in the listener's loop."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(happens, PATIENCE), self._loop).result()

    def session(self) -> Any:
        """The session of the next connection."""
        return self.wait(self.server.sessions.get())


@contextlib.contextmanager
def running(session: type[Recorder], event_loop: str = "asyncio", **options: Any) -> Iterator[Running]:
    started: Future[Running] = Future()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving(session, **options) as server:
            started.set_result(Running(server, asyncio.get_running_loop()))
            await stop.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=EVENT_LOOPS[event_loop]) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    server = started.result(PATIENCE)
    try:
        yield server
    finally:
        server._loop.call_soon_threadsafe(stop.set)
        thread.join()


@pytest.fixture(params=CLIENT_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect_blipmq(kind: str) -> Iterator[Any]:
    with clients(kind, blipmq.Client, blipmq.AsyncClient) as make:
        yield lambda server, **options: make(
            server.host, server.port, "dev-key", **{"server_hostname": "localhost", "timeout": PATIENCE, **options}
        )


@pytest.fixture
def connect_sspq(kind: str) -> Iterator[Any]:
    with clients(kind, sspq.Client, sspq.AsyncClient) as make:
        yield lambda server, **options: make(
            server.host, server.port, **{"server_hostname": "localhost", "timeout": PATIENCE, **options}
        )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority that is not trusted."""
    return Authority(tmp_path, "stranger")


def trusting(authority: Authority, identity: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """A client's `tls` argument."""
    context = ssl.create_default_context(cafile=str(authority.file))
    if identity is not None:
        context.load_cert_chain(*identity)
    return context


# Trust.


@pytest.mark.parametrize("event_loop", EVENT_LOOPS)
def test_blipmq_is_spoken_over_tls(connect_blipmq: Any, authority: Authority, event_loop: str) -> None:
    body = b"secret" * 200_000
    with (
        running(Blip, event_loop, tls=server_context(*authority.issue("server"))) as server,
        connect_blipmq(server, tls=trusting(authority)) as client,
    ):
        assert client.subscribe("demo") == SUBSCRIPTION
        client.publish("demo", body)
        client.publish("demo", b"second")
        client.flush()
        assert client.poll(SUBSCRIPTION).body == body
        assert client.poll(SUBSCRIPTION).body == b"second"
        assert client.poll(SUBSCRIPTION, timeout=0.01) is None


@pytest.mark.parametrize("event_loop", EVENT_LOOPS)
def test_sspq_is_spoken_over_tls(connect_sspq: Any, authority: Authority, event_loop: str) -> None:
    with (
        running(Sspq, event_loop, tls=server_context(*authority.issue("server"))) as server,
        connect_sspq(server, tls=trusting(authority)) as client,
    ):
        for payload in (b"hello", b"x" * 3_000_000):
            client.send(payload)
            assert client.receive() == sspq.Message(payload, 3)
            client.confirm()


@pytest.mark.parametrize("event_loop", EVENT_LOOPS)
def test_send_and_leave_at_once_loses_nothing(connect_sspq: Any, authority: Authority, event_loop: str) -> None:
    with running(Sspq, event_loop, tls=server_context(*authority.issue("server"))) as server:
        with connect_sspq(server, tls=trusting(authority)) as client:
            client.send(b"hello")
            client.send(bytes(3_000_000))
        session = server.session()
        server.wait(session.lost())
        assert session.data == b"hello" + bytes(3_000_000)
        assert session.heard[-2:] == ["eof", "lost"]


def test_a_client_that_says_nothing_yet_has_its_session(connect_sspq: Any, authority: Authority) -> None:
    with (
        running(Sspq, tls=server_context(*authority.issue("server"))) as server,
        connect_sspq(server, tls=trusting(authority)),
    ):
        assert server.session().data == b""


def test_the_certificate_must_be_for_the_host_unless_another_name_is_given(
    connect_sspq: Any, authority: Authority
) -> None:
    with running(Sspq, tls=server_context(*authority.issue("server"))) as server:
        refused = r"^the broker's certificate is not trusted: IP address mismatch, certificate is not valid for '127"
        with (
            pytest.raises(TlsFailed, match=refused),
            connect_sspq(server, tls=trusting(authority), server_hostname=None),
        ):
            pass
        server.host = "localhost"
        with connect_sspq(server, tls=trusting(authority), server_hostname=None) as client:
            client.send(b"hello")
            assert client.receive() == sspq.Message(b"hello", 3)


@pytest.mark.parametrize("protocol", ["blipmq", "sspq"])
def test_a_broker_that_is_not_trusted_is_told_apart_and_told_so(
    request: pytest.FixtureRequest,
    kind: str,
    protocol: str,
    authority: Authority,
    stranger: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connect = request.getfixturevalue(f"connect_{protocol}")
    with running(Recorder, tls=server_context(*authority.issue("server"))) as server:
        with (
            pytest.raises(TlsFailed, match=r"^the broker's certificate is not trusted: .*certificate") as caught,
            connect(server, tls=trusting(stranger)),
        ):
            pass
        assert isinstance(caught.value, OSError)
        assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)
        server.wait(server.server.refused(Refusal.TLS_HANDSHAKE))
    [message] = [record.getMessage() for record in caplog.records]
    assert "UNKNOWN_CA" in message


# Client certificates.


def test_a_client_shows_its_certificate(connect_blipmq: Any, authority: Authority) -> None:
    with running(Blip, tls=server_context(*authority.issue("server"), client_ca=authority.file)) as server:
        context = trusting(authority, authority.issue("worker-7"))
        with connect_blipmq(server, tls=context) as client:
            client.flush()
        certificate = server.session().connection.peer_certificate
        assert certificate["subject"] == ((("commonName", "worker-7"),),)


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
def version(request: pytest.FixtureRequest) -> ssl.TLSVersion:
    return ssl.TLSVersion(request.param)


@pytest.fixture(params=[False, True], ids=["no certificate", "of another authority"])
def not_welcome(
    request: pytest.FixtureRequest, authority: Authority, stranger: Authority, version: ssl.TLSVersion
) -> ssl.SSLContext:
    """The TLS context of a client that a broker with client certificates refuses."""
    context = trusting(authority, stranger.issue("worker-7") if request.param else None)
    context.maximum_version = version
    return context


REFUSED = r"^the broker refuses this TLS connection: |(after|within) the TLS handshake: .* accept our certificate\?$"
"""Event loops do not always send the words of a refusal before they hang up."""


def test_a_client_without_a_known_certificate_is_told_when_it_connects(
    connect_blipmq: Any, authority: Authority, not_welcome: ssl.SSLContext
) -> None:
    with (
        running(Blip, tls=server_context(*authority.issue("server"), client_ca=authority.file)) as server,
        pytest.raises(TlsFailed, match=REFUSED),
        connect_blipmq(server, tls=not_welcome),
    ):
        pass


def test_a_client_that_only_sends_is_told_at_the_latest_when_it_leaves(
    connect_sspq: Any, authority: Authority, not_welcome: ssl.SSLContext
) -> None:
    with (
        running(Sspq, tls=server_context(*authority.issue("server"), client_ca=authority.file)) as server,
        pytest.raises(TlsFailed, match=REFUSED),
        connect_sspq(server, tls=not_welcome) as client,
    ):
        client.send(b"hello")


def test_a_refusal_that_is_known_before_the_next_send_is_told_by_it(
    connect_sspq: Any, authority: Authority, not_welcome: ssl.SSLContext
) -> None:
    with running(Sspq, tls=server_context(*authority.issue("server"), client_ca=authority.file)) as server:

        def send_after_the_refusal() -> None:
            with connect_sspq(server, tls=not_welcome) as client:
                server.wait(server.server.refused(Refusal.TLS_HANDSHAKE))
                while True:  # the first ones may still leave
                    client.send(b"hello" * 100_000)

        with pytest.raises(TlsFailed, match=REFUSED):
            send_after_the_refusal()


def test_the_words_of_a_refusal_are_heard_though_the_broker_has_hung_up(authority: Authority) -> None:
    tls = server_context(*authority.issue("server"), client_ca=authority.file)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"), connection:
                tls.wrap_socket(connection, server_side=True)  # this kind of broker does send its alert

        broker = threading.Thread(target=refuse)
        broker.start()
        client = sspq.Client(*listener.getsockname(), tls=trusting(authority), server_hostname="localhost")
        broker.join()

        def send_on() -> None:
            while True:  # the first ones may still leave
                client.send(b"hello" * 100_000)

        with pytest.raises(TlsFailed, match=r"^the broker refuses this TLS connection: certificate required$"):
            send_on()


# Brokers that do not speak TLS, and ends.


class Babbler(Recorder):
    def data_received(self, data: bytes) -> None:
        self.connection.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")


class Deaf(Recorder):
    def data_received(self, data: bytes) -> None:
        self.connection.close()


@pytest.mark.parametrize(
    ("session", "message"),
    [
        (Babbler, "no TLS with the broker: wrong version number"),
        (Deaf, r".* within the TLS handshake: does it speak TLS there, .*\?"),
    ],
)
def test_a_broker_without_tls_is_named_as_such(
    connect_sspq: Any, authority: Authority, session: type[Recorder], message: str
) -> None:
    with (
        running(session) as server,
        pytest.raises(TlsFailed, match=f"^{message}$"),
        connect_sspq(server, tls=trusting(authority)),
    ):
        pass


def test_a_broker_that_says_nothing_is_given_up(
    connect_sspq: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    handshake = TlsCore.handshake  # connecting has a thousand times the time
    monkeypatch.setattr(TlsCore, "handshake", lambda core, timeout: handshake(core, timeout / 1000))
    with (
        running(Recorder) as server,
        pytest.raises(ReplyTimeout, match=r"^no answer in the TLS handshake for 0\.05 s$"),
        connect_sspq(server, tls=trusting(authority), timeout=50),
    ):
        pass


class Shout(Recorder):
    def data_received(self, data: bytes) -> None:
        self.connection.write(data.upper())


class LastWord(Recorder):
    def data_received(self, data: bytes) -> None:
        self.connection.write(b"x" * 1000)
        self.connection.close()


Carry = Callable[[Running, TlsCore, list[Any]], list[Any]]


async def _carry_out(server: Running, core: TlsCore, operations: list[Any]) -> list[Any]:
    driver = AsyncClientDriver(core, PATIENCE)
    await driver.connect(server.host, server.port)
    try:
        return [await driver.run(operation) for operation in operations]
    finally:
        await driver.close()


@pytest.fixture
def carry_out(kind: str) -> Iterator[Carry]:
    """Connect a driver, carry operations out, close; what they return."""

    def blocking(server: Running, core: TlsCore, operations: list[Any]) -> list[Any]:
        driver = ClientDriver(core, PATIENCE)
        driver.connect(server.host, server.port)
        with contextlib.closing(driver):
            return [driver.run(operation) for operation in operations]

    if kind == "blocking":
        yield blocking
        return
    with asyncio.Runner(loop_factory=EVENT_LOOPS[kind]) as runner:
        yield lambda *arguments: runner.run(_carry_out(*arguments))


@pytest.mark.parametrize("event_loop", EVENT_LOOPS)
def test_both_sides_may_write_much_at_once(carry_out: Carry, authority: Authority, event_loop: str) -> None:
    inner = Echoes()
    with running(Shout, event_loop, tls=server_context(*authority.issue("server"))) as server:
        core = TlsCore(inner, trusting(authority), "localhost")
        [answer] = carry_out(server, core, [inner.ask(b"hello" * 2_000_000, 10_000_000, PATIENCE)])
    assert answer == b"HELLO" * 2_000_000


def test_an_answer_that_comes_together_with_the_end_counts(carry_out: Carry, authority: Authority) -> None:
    inner = Echoes()
    operations = [inner.ask(b"hello", 1000, PATIENCE), inner.ask(b"again", 2000, PATIENCE)]
    with running(LastWord, tls=server_context(*authority.issue("server"))) as server:
        core = TlsCore(inner, trusting(authority), "localhost")
        assert carry_out(server, core, operations[:1]) == [b"x" * 1000]
        core = TlsCore(inner, trusting(authority), "localhost")
        inner.received.clear()
        with pytest.raises(ConnectionLost, match="clos"):
            carry_out(server, core, [inner.ask(b"hello", 1000, PATIENCE), operations[1]])
    assert inner.received == b"x" * 1000


def test_a_server_name_without_tls_is_an_error(kind: str) -> None:
    for client in (
        functools.partial(blipmq.Client, key="dev-key"),
        functools.partial(blipmq.AsyncClient, key="dev-key"),
        sspq.Client,
        sspq.AsyncClient,
    ):
        with pytest.raises(ValueError, match=r"^server_hostname means something only together with tls$"):
            client("127.0.0.1", 1, server_hostname="localhost")
