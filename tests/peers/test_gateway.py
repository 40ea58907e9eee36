"""The gateway: a message of a queue or topic becomes an envelope, or says why it cannot."""

from __future__ import annotations

import contextlib

import msgpack  # type: ignore[import-untyped]
import pytest

from peers import gateway
from queues.engine.api import Content, PeerMessage, Undeliverable
from tests.peers.vectors import SECRET

DEEP = b"\x91" * 600 + b"\xc0"


@pytest.mark.parametrize(
    ("payload", "content", "published"),
    [
        (b"", Content.MSGPACK, 0.0),
        (b"\xc1", Content.MSGPACK, 0.0),
        (b"\x01\x02", Content.MSGPACK, 0.0),
        (DEEP * 3, Content.MSGPACK, 0.0),
        (DEEP, Content.MSGPACK, 0.0),
        (msgpack.packb(msgpack.ExtType(5, b"x")), Content.MSGPACK, 0.0),
        (msgpack.packb({b"\xff": 1}), Content.MSGPACK, 0.0),
        (msgpack.packb({(1, 2): 3}), Content.MSGPACK, 0.0),
        (msgpack.packb(float("nan")), Content.MSGPACK, 0.0),
        (b"\xa3\xed\xa0\x80", Content.MSGPACK, 0.0),
        (msgpack.packb(msgpack.Timestamp(2**33)), Content.MSGPACK, 0.0),
        (b"{", Content.JSON, 0.0),
        (b'{"a":1},"to":"eve"', Content.JSON, 0.0),
        (b"[" * 100_000, Content.JSON, 0.0),
        (b"\xff", Content.LETTER, 0.0),
        (b"x" * (1 << 20), None, 0.0),
        (b"x", None, 1e300),
    ],
)
def test_a_message_that_is_no_envelope_is_undeliverable_and_raises_nothing_else(
    payload: bytes, content: int | None, published: float
) -> None:
    letter = PeerMessage("key", payload, content, "fivewire", published)
    with contextlib.suppress(Undeliverable):
        gateway.wrap(letter, "bob", SECRET)
