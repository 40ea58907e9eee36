"""Limits of the site for HTTP clients, over real sockets of daphne."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers.running import WebBroker
from tests.waiting import PATIENCE

FORM = "Content-Type: application/x-www-form-urlencoded"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def site() -> Iterator[WebBroker]:
    limits: dict[str, Any] = {
        "BROKER_HTTP_MAX_BODY": MIB,
        "BROKER_HTTP_REQUEST_TIMEOUT": 2,
        "BROKER_HTTP_MAX_CONNECTIONS_PER_ADDRESS": 40,
    }
    with WebBroker("postgresql://none@127.0.0.1:1/none", **limits) as daphne:
        yield daphne


class Client:
    """A connection that sends what it is told."""

    def __init__(self, site: WebBroker) -> None:
        self.socket = socket.create_connection(site.address, PATIENCE)

    def send(self, *lines: str, body: bytes = b"") -> None:
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    def answer(self) -> str:
        """All until the server closes."""
        with contextlib.suppress(ConnectionResetError):
            return b"".join(iter(lambda: self.socket.recv(65536), b"")).decode()
        return ""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


def is_well(site: WebBroker) -> bool:
    with Client(site) as client:
        client.send("GET /healthz HTTP/1.1", "Host: localhost", "Connection: close")
        return client.answer().startswith("HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/healthz", "/admin/login/", "/nowhere"])
def test_a_body_that_is_too_large_is_refused_before_it_is_read(site: WebBroker, path: str) -> None:
    with Client(site) as client:
        client.send(f"POST {path} HTTP/1.1", "Host: localhost", FORM, "Content-Length: 300000000")
        assert client.answer().startswith("HTTP/1.1 413 ")
    assert is_well(site)


def test_a_client_that_waits_for_100_continue_is_not_told_to_go_on(site: WebBroker) -> None:
    with Client(site) as client:
        client.send("PUT / HTTP/1.1", "Host: localhost", "Expect: 100-continue", "Content-Length: 300000000")
        answer = client.answer()
    assert answer.startswith("HTTP/1.1 413 ")
    assert "100 Continue" not in answer


def test_a_body_in_chunks_ends_at_the_limit_too(site: WebBroker) -> None:
    before, chunk = site.rss, b"a=b&" * 16384
    with Client(site) as client:
        client.send("POST /admin/login/ HTTP/1.1", "Host: localhost", FORM, "Transfer-Encoding: chunked")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(1000):
                client.socket.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    assert site.rss - before < 64 * MIB
    assert is_well(site)


def test_a_form_with_very_many_fields_costs_little(site: WebBroker) -> None:
    before, body = site.rss, b"a&" * (MIB // 2)
    with Client(site) as client:
        client.send(
            "POST /healthz HTTP/1.1", "Host: localhost", FORM, f"Content-Length: {len(body)}", "Connection: close",
            body=body,
        )  # fmt: skip
        assert client.answer().startswith("HTTP/1.1 403 ")
    assert site.rss - before < 32 * MIB


def test_a_request_that_drips_in_is_ended(site: WebBroker) -> None:
    with Client(site) as headers, Client(site) as body:
        headers.socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
        body.send("POST /healthz HTTP/1.1", "Host: localhost", "Content-Length: 100", body=b"half")
        assert headers.answer().startswith("HTTP/1.1 408 ")
        assert body.answer().startswith("HTTP/1.1 408 ")


def test_a_connection_that_is_kept_alive_serves_many_requests(site: WebBroker) -> None:
    with Client(site) as client:
        for _ in range(3):
            client.send("GET /healthz HTTP/1.1", "Host: localhost", "Content-Length: 4", body=b"a=b&")
            got = b""
            while not got.endswith(b'"ok"}'):
                some = client.socket.recv(65536)
                assert some, got
                got += some
            assert got.startswith(b"HTTP/1.1 200 ")
        # Two at once: the second waits in the buffer, and its half is timed on its own.
        one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.socket.sendall(one + one + one[:9])
        rest = client.answer()
    assert rest.count("HTTP/1.1 200 ") == 2
    assert "HTTP/1.1 408 " in rest


def test_connections_of_one_address_are_limited_and_counted_out_again(site: WebBroker) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(site)) for _ in range(60)]
        ended = 0
        for client in clients:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                client.send("GET /healthz HTTP/1.1", "Host: localhost", "Connection: close")
            ended += not client.answer().startswith("HTTP/1.1 200 ")
        assert 0 < ended <= 20
    for _ in range(100):
        assert is_well(site)
    with Client(site) as client:
        client.send("GET /metrics HTTP/1.1", "Host: localhost", "Connection: close")
        assert 'fivewire_http_refused_total{reason="max_connections_per_address"}' in client.answer()


def test_a_websocket_leaves_the_limit_of_http(site: WebBroker) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(site.connect())
        assert is_well(site)
