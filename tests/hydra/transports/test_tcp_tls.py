"""Links over TCP with TLS: both sides show a certificate of the nodes' authority."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from hydra.transports.base import MAX_QUEUED, TransportError, TransportOptions
from tests.hydra.transports.ends import (
    LOCAL_TCP,
    OPTIONS,
    dialled,
    listening,
    nothing_left_open,
    on_both_loops,
)
from tests.waiting import until
from tests.wire.net.test_tls import Authority
from wire.net.tls import server_context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def client_context(authority: Authority, identity: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    context.check_hostname = False
    if identity is not None:
        context.load_cert_chain(*identity)
    return context


def node(authority: Authority, name: str, secret: bytes = b"") -> TransportOptions:
    """The options of a node with a certificate."""
    identity = authority.issue(name)
    return TransportOptions(
        secret=secret,
        server_tls=server_context(*identity, client_ca=authority.file),
        client_tls=client_context(authority, identity),
    )


@pytest.mark.parametrize("secret", [b"", b"open sesame"], ids=["certificates", "and a secret"])
@on_both_loops
async def test_nodes_of_one_authority_are_linked(authority: Authority, secret: bytes) -> None:
    alpha, beta = node(authority, "alpha", secret), node(authority, "beta", secret)
    lines = b"RECV 1 :a!b@c PRIVMSG #d :hello\r\n" * 20_000
    async with nothing_left_open(), listening(LOCAL_TCP, alpha) as (listener, door):
        here = await dialled(listener.address, beta)
        there = await door.end()
        here.link.write(lines)
        await there.hears(lines)
        there.link.write(b"MEET 1 2\r\n")
        await here.hears(b"MEET 1 2\r\n")
        assert there.link.origin == here.link.origin == "127.0.0.1"
        here.link.close()
        assert await there.over() == "closed by the other side"


@on_both_loops
async def test_a_listener_with_an_unknown_certificate_is_not_linked(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = node(Authority(tmp_path, "stranger"), "alpha")
    async with nothing_left_open(), listening(LOCAL_TCP, stranger) as (listener, door):
        with pytest.raises(TransportError, match="its certificate is not accepted: "):
            await dialled(listener.address, node(authority, "beta"))
        while listener._strangers:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert door.ends.empty()
    assert "refused 1 link(s), the last from 127.0.0.1" in caplog.text


@pytest.mark.parametrize("stranger", [False, True], ids=["no certificate", "of another authority"])
@on_both_loops
async def test_a_dialling_side_without_a_known_certificate_is_not_linked(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, stranger: bool
) -> None:
    identity = Authority(tmp_path, "stranger").issue("beta") if stranger else None
    options = TransportOptions(client_tls=client_context(authority, identity))
    async with nothing_left_open(), listening(LOCAL_TCP, node(authority, "alpha")) as (listener, door):
        # In TLS 1.3 who dials believes in its link until it first reads.
        here = await dialled(listener.address, options)
        assert await here.over()
        assert here.data == b""
        assert door.ends.empty()
    [message] = [record.getMessage() for record in caplog.records if record.name == "hydra.transports.tcp"]
    assert "certificate" in message.lower()


@on_both_loops
async def test_a_side_without_tls_is_refused(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with nothing_left_open(), listening(LOCAL_TCP, node(authority, "alpha")) as (listener, door):
        here = await dialled(listener.address)
        here.link.write(b"KNOCK 12345\r\n" * 100)
        await here.over()
        assert door.ends.empty()
    assert "refused 1 link(s), the last from 127.0.0.1" in caplog.text


@on_both_loops
async def test_a_node_with_tls_is_not_linked_to_one_without(authority: Authority) -> None:
    async with nothing_left_open(), listening(LOCAL_TCP) as (listener, door):

        async def hang_up() -> None:
            (await door.end()).link.close()

        closing = asyncio.create_task(hang_up())
        with pytest.raises(TransportError):
            await dialled(listener.address, node(authority, "beta"))
        await closing


@on_both_loops
async def test_a_silent_client_is_given_up_in_time(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    alpha = node(authority, "alpha")
    options = TransportOptions(server_tls=alpha.server_tls, connect_timeout=0.1)
    async with nothing_left_open(), listening(LOCAL_TCP, options) as (listener, door):
        here = await dialled(listener.address, OPTIONS)
        await here.over()
        await until(lambda: "refused 1 link(s)" in caplog.text, "the log line, which may come after the end")
        assert door.ends.empty()


@on_both_loops
async def test_closing_the_listener_ends_unfinished_handshakes(authority: Authority) -> None:
    async with nothing_left_open(), listening(LOCAL_TCP, node(authority, "alpha")) as (listener, _):
        here = await dialled(listener.address, OPTIONS)
        while not listener._strangers:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        await listener.close()
        await here.over()


@on_both_loops
async def test_a_neighbour_that_does_not_read_loses_its_link_over_tls_too(authority: Authority) -> None:
    async with nothing_left_open(), listening(LOCAL_TCP, node(authority, "alpha")) as (listener, door):
        here = await dialled(listener.address, node(authority, "beta"))
        there = await door.end()
        here.link._channel._transport.pause_reading()  # type: ignore[attr-defined]
        written = 0
        while there.reason is None and written < 64 * MAX_QUEUED:
            there.link.write(b"x" * 65534 + b"\r\n")
            written += 65536
            await asyncio.sleep(0)
        assert await there.over() == "does not read"
        assert written < 16 * MAX_QUEUED
        here.link.close()
