"""Peerbus: peers that send what no peer should. Only they may notice."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.codec.envelope import MAX_FRAME, MAX_ID, MAX_KEY, MAX_NAME, MAX_RECIPIENT
from tests.hostile.pulse import Pulse
from tests.hostile.unharmed import PeerNeighbour, drawn, unharmed
from tests.hostile.values import ODD, TIMES, integers, octets, texts
from tests.peers.running import PEERS, WebBroker, ack, envelope, register
from tests.peers.vectors import SECRET
from tests.peers.web.serving import BINARY, CLOSE, CONTINUATION, TEXT, Raw, frame
from tests.wire.broker import Database

#: Characters that JSON must escape: halves of surrogate pairs, and NULs.
ESCAPES = ("\ud800", "\udfff\ud800", "\0", "x\0y")
#: Numbers of characters around every limit.
LENGTHS = sorted(
    {limit // size + step for limit in (MAX_ID, MAX_KEY, MAX_NAME, MAX_RECIPIENT, 2000, 8000)
     for size in (1, 2, 3, 4) for step in (-1, 0, 1)}
)  # fmt: skip

LIMITS = st.builds(lambda one, length: one * length, st.sampled_from("xé€😀"), st.sampled_from(LENGTHS))
WORDS = texts(8000) | LIMITS | st.sampled_from(ESCAPES)
NAMES = st.sampled_from(("hostile", "hostile", "hostile", "neighbour", "*", "queue:", "topic:x", "_peer/x", "")) | WORDS
RECIPIENTS = NAMES | st.builds(
    lambda kind, name: f"{kind}:{name}",
    st.sampled_from(("queue", "topic", "peer")),
    st.sampled_from(("jobs", "_system", "_peer/neighbour", "celery", "fivewire")) | WORDS,
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    WORDS | integers(-(2**65), 2**65) | st.none() | st.booleans() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(100), inner, max_size=3),
    max_leaves=6,
)
IDS = st.sampled_from(("id-1", "id-2", "")) | WORDS
FIELDS = st.fixed_dictionaries(
    {"protocol_version": st.sampled_from(("v1", "v1", "v1", "v2", None)) | ANYTHING, "id": IDS, "to": RECIPIENTS},
    optional={
        "from": WORDS, "ts": WORDS, "source": WORDS, "kind": st.sampled_from(("msg", "broadcast")) | WORDS,
        "hmac": WORDS, "body": ANYTHING, "task": WORDS, "headers": ANYTHING, "type": ANYTHING,
    },
)  # fmt: skip
FRAMES = st.one_of(
    st.builds(lambda key: {"type": "ack", "id": key}, IDS),
    st.builds(lambda key: {"type": "ack", "id": key}, ANYTHING),
    FIELDS,
    FIELDS,
    st.builds(lambda name: {"protocol_version": "v1", "type": "register", "token": "dev-key", "name": name}, NAMES),
    st.just({"protocol_version": "v1", "type": "peers"}),
    st.builds(lambda kind, more: {"type": kind} | more, st.sampled_from(("deliver", "peers", "x")), FIELDS),
    ANYTHING,
).map(lambda value: json.dumps(value).encode())
MESSAGES = st.one_of(
    FRAMES.map(frame),
    FRAMES.map(frame),
    octets(2000).map(frame),
    octets(2000).map(lambda data: frame(data, BINARY)),
    octets(200).map(lambda data: frame(data, TEXT, False) + frame(data, CONTINUATION)),
    octets(120).map(lambda data: frame(data, CLOSE)),
)


@st.composite
def sessions(draw: st.DrawFn) -> list[bytes]:
    """The frames that a client sends on one connection; most begin with a register."""
    sent = [frame(register("hostile"))] if draw(st.integers(0, 4)) else []
    for _ in range(draw(st.integers(0, 6))):
        message = draw(MESSAGES)
        sent.append(message * (draw(TIMES) if len(message) < 1000 else 1))
    return sent


def after_register(*messages: bytes) -> list[bytes]:
    return [frame(register("hostile")), *map(frame, messages), frame(PEERS)]


#: Inputs that once did harm, or might.
CASES: dict[str, Callable[[], Sequence[bytes]]] = {
    "an ack whose key is long in bytes": lambda: after_register(ack("😀" * 753)),
    "acks at and past the limit": lambda: after_register(
        *(ack("x" * length) for length in (MAX_KEY, MAX_KEY + 1)), *(ack("é" * length) for length in (736, 737))
    ),
    "5000 made-up acks": lambda: after_register(*(ack(f"made up {n}") for n in range(5000))),
    "5000 times the same ack": lambda: after_register(*[ack("x" * MAX_KEY)] * 5000),
    "an id that is long in bytes": lambda: after_register(
        *(envelope("hostile", "😀" * length) for length in (128, 129, 512))
    ),
    "a recipient of a megabyte": lambda: after_register(
        *(envelope(kind + "x" * 1_000_000, "r") for kind in ("", "topic:", "queue:"))
    ),
    "5000 unknown recipients": lambda: after_register(*(envelope(f"{n}" * 100, f"n{n}") for n in range(5000))),
    "the longest name, of the longest characters": lambda: [
        frame(register("😀" * MAX_NAME)),
        frame(envelope("*", "i" * MAX_ID)),
        frame(PEERS),
    ],
    "half of a surrogate pair and NUL everywhere": lambda: after_register(
        *(json.dumps({"protocol_version": "v1", "id": text, "to": text, "from": text}).encode() for text in ESCAPES),
        *(json.dumps({"type": "ack", "id": text}).encode() for text in ESCAPES),
    ),
    "a NUL in a register": lambda: [frame(b'{"protocol_version":"v1","type":"register","token":"\\u0000","name":"a"}')],
    "a token of a megabyte": lambda: [frame(register("hostile", "t" * 1_000_000))],
    "arrays and objects, deep in each other": lambda: after_register(
        b"[" * 500_000,
        b'{"a":' * 200_000,
        b'{"protocol_version":"v1","id":"deep","to":"hostile","body":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"type":"ack","id":' + b"[" * 100_000,
    ),
    "numbers of a megabyte": lambda: after_register(
        b'{"type":"ack","id":' + b"9" * 1_000_000 + b"}",
        b'{"protocol_version":"v1","id":"number","to":"queue:jobs","body":-' + b"9" * 1_000_000 + b"}",
        b'{"protocol_version":"v1","id":"big","to":"queue:jobs","body":[1e400,-1e400,1e-400,18446744073709551616]}',
    ),
    "letters to the system's queues": lambda: after_register(
        *(
            envelope(f"queue:{name}", f"s{n}", task="add", args=[1], method="shutdown")
            for n, name in enumerate(("_system", "_peer/neighbour", "celery", "fivewire", "x.celery.pidbox"))
        )
    ),
    "a letter that fits its deliver frame to the byte, and one more": lambda: after_register(
        *(envelope("hostile", f"fit{more}", body="x" * (MAX_FRAME - 600 + more)) for more in range(0, 600, 50))
    ),
    "a frame that is one byte too long": lambda: [frame(register("hostile")), frame(b" " * (MAX_FRAME + 1))],
    "a frame of 2**63 bytes, cut off": lambda: [b"\x81\xff" + (2**63 - 1).to_bytes(8) + bytes(100)],
    "a thousand registers": lambda: [frame(register("hostile"))] * 1000,
    "broadcasts without end": lambda: after_register(*(envelope("*", f"b{n}") for n in range(2000))),
    "2000 questions who is there": lambda: after_register(*[PEERS] * 2000),
}


#: Names that those above register, or try to.
REGISTERED = ("hostile", "😀" * MAX_NAME, *ODD)


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[WebBroker]:
    with WebBroker(store, PEERBUS_HMAC_SECRET=SECRET) as running:
        yield running


@pytest.fixture(scope="module")
def neighbour(broker: WebBroker) -> Iterator[PeerNeighbour]:
    made = PeerNeighbour(broker)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pulsing(broker: WebBroker) -> Iterator[PeerNeighbour]:
    made = PeerNeighbour(broker, "pulse")
    yield made
    made.close()


@pytest.fixture
def nothing_else_harmed(
    broker: WebBroker, neighbour: PeerNeighbour, pulsing: PeerNeighbour, store: Database
) -> Iterator[None]:
    with unharmed(store, lambda: broker.log, neighbour.served), Pulse(pulsing.served, store, broker.process.pid):
        yield


def converse(broker: WebBroker, messages: Sequence[bytes]) -> None:
    """Connect, send the first message and await what it brings, then all others and a close frame, and read until the
    end, both at once. So what a register is followed by is looked at and not dropped with the connection."""
    with Raw(cast(Any, broker), "/ws/peerbus", 0) as client:
        client.send(*messages[:1])
        if messages and messages[0] in [frame(register(name)) for name in REGISTERED]:
            client.read()
        data = b"".join(messages[1:]) + frame(b"\x03\xe8", CLOSE)

        def send() -> None:
            with contextlib.suppress(OSError):  # it was closed for what came before
                client.send(data)
                client.socket.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        with contextlib.suppress(ConnectionError):
            client.rest()
        client.socket.close()
        sender.join()


pytestmark = pytest.mark.usefixtures("nothing_else_harmed")


@pytest.mark.parametrize("name", CASES)
def test_a_kept_case_harms_nothing_else(broker: WebBroker, name: str) -> None:
    converse(broker, CASES[name]())


@pytest.mark.parametrize("odd", ODD)
def test_a_character_that_is_treated_in_its_own_way_harms_nothing_else(broker: WebBroker, odd: str) -> None:
    converse(
        broker,
        [frame(register(odd)), *(frame(envelope(to, f"{odd}{to}")) for to in (odd, "*", f"queue:{odd}")),
         frame(ack(odd)), frame(PEERS)],
    )  # fmt: skip


@drawn
@given(sessions())
def test_a_drawn_session_harms_nothing_else(broker: WebBroker, neighbour: PeerNeighbour, messages: list[bytes]) -> None:
    converse(broker, messages)
    neighbour.served()
