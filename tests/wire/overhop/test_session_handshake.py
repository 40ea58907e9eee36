"""Overhop against a running broker: the way from a connection to a worker, and what time does to it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer, error_code
from wire.overhop.codec import encoder
from wire.overhop.codec.names import Code, Type

VECTORS = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["overhop"]
BYTES = {name: bytes.fromhex(text) for name, text in VECTORS.items()}

REQUESTS = [kind for kind in Type if Type.REGISTER < kind < Type.OK]
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")


@pytest.fixture
def client(broker: Broker) -> Iterator[Peer]:
    """A connection that has said nothing yet."""
    with Peer(broker.overhop, register=False) as connection:
        yield connection


def moment(text: str) -> datetime:
    """A timestamp as the server writes it."""
    assert RFC3339.fullmatch(text), text
    return datetime.fromisoformat(text)


# The published vectors.


def test_the_published_bytes_are_answered_byte_for_byte(client: Peer) -> None:
    client.send(BYTES["HELLO rid-1"])
    assert client.take(len(BYTES["HI rid-1"])) == BYTES["HI rid-1"]
    client.send(BYTES["REGISTER r2"])
    client.wid = client.reply("r2").p["wid"]
    client.send(BYTES["PING rid-ping"])
    assert client.reply("rid-ping").t == Type.PONG


@pytest.mark.parametrize("name", ["zero length: close", "8 MiB + 1 header: close"])
def test_a_wrong_length_ends_the_connection_without_a_word(client: Peer, name: str) -> None:
    client.send(BYTES["HELLO rid-1"], BYTES[name])
    assert client.rest() == BYTES["HI rid-1"]


def test_8_mib_in_a_header_is_not_too_much(client: Peer) -> None:
    client.send(BYTES["HELLO rid-1"], (8 * 1024 * 1024).to_bytes(4, "big"))
    assert client.take(len(BYTES["HI rid-1"])) == BYTES["HI rid-1"]
    assert client.is_silent()


# The order.


def test_hello_hi_register_ok(client: Peer) -> None:
    client.send(encoder.encode(Type.HELLO, "a rid", {}))
    assert client.read() == (Type.HI, "a rid", {})
    client.send(encoder.encode(Type.REGISTER, "ünother", {}))
    answer = client.read()
    assert (answer.t, answer.rid, set(answer.p)) == (Type.OK, "ünother", {"wid"})
    assert str(UUID(answer.p["wid"])) == answer.p["wid"]


def test_each_worker_has_an_id_of_its_own(worker: Peer, other: Peer) -> None:
    assert worker.wid != other.wid


def test_fields_of_hello_are_ignored(client: Peer) -> None:
    client.send(encoder.encode(Type.HELLO, "a", {"client": "x", "version": 7, "nil": None}))
    assert client.read() == (Type.HI, "a", {})


@pytest.mark.parametrize("t", [Type.REGISTER, *REQUESTS, 0, -1, 25, 100, Type.OK, Type.QUEST, 2**63 - 1])
def test_nothing_comes_before_hello(client: Peer, t: int) -> None:
    client.violation(t)


@pytest.mark.parametrize("t", [Type.HELLO, *REQUESTS, 0, -1, 25, 100, Type.OK, Type.QUEST, -(2**63)])
def test_after_hello_nothing_but_register(client: Peer, t: int) -> None:
    client.hello()
    client.violation(t)


@pytest.mark.parametrize("t", [Type.HELLO, Type.REGISTER])
def test_a_second_register_is_refused(worker: Peer, t: Type) -> None:
    worker.violation(t)


@pytest.mark.parametrize("p", [{"wid": "x"}, {"": None}])
def test_register_carries_nothing(client: Peer, p: dict[str, object]) -> None:
    client.hello()
    client.violation(Type.REGISTER, p)


def test_frames_after_a_violation_are_not_answered(broker: Broker, client: Peer) -> None:
    client.send(
        encoder.encode(Type.HELLO, "a", {}),
        encoder.encode(Type.PING, "b", {}),
        encoder.encode(Type.REGISTER, "c", {}),
        encoder.encode(Type.PING, "d", {}),
    )
    assert client.read().t == Type.HI
    refusal = client.read()
    assert (refusal.rid, error_code(refusal)) == ("b", Code.PROTOCOL_VIOLATION)
    client.ended()


def test_a_request_id_that_a_client_calls_0_is_echoed(client: Peer) -> None:
    client.send(encoder.encode(Type.HELLO, "0", {}))
    assert client.take(len(encoder.encode(Type.HI, "0", {}))) == encoder.encode(Type.HI, "0", {})


def test_a_connection_may_end_at_any_time(broker: Broker, worker: Peer) -> None:
    for cut in range(1, len(BYTES["HELLO rid-1"])):
        with Peer(broker.overhop, register=False) as leaver:
            leaver.send(BYTES["HELLO rid-1"][:cut])
            leaver.end_of_input()
            assert leaver.rest() == b""
    with Peer(broker.overhop, register=False) as leaver:
        leaver.send(BYTES["HELLO rid-1"], BYTES["REGISTER r2"], BYTES["PING rid-ping"])
        leaver.end_of_input()
        assert leaver.read().t == Type.HI
        assert leaver.read().rid == "r2"
        assert leaver.read().rid == "rid-ping"
        assert leaver.rest() == b""
    worker.ask(Type.PING)


def test_status_tells_how_many_are_registered(broker: Broker, client: Peer, worker: Peer, other: Peer) -> None:
    client.hello()
    wait_until(lambda: worker.ask(Type.STATUS)["pools"] == {"anonymous": 1, "worker": 2})


# Time. What a client does within a limit has some seconds for it: it may be held up. A heartbeat looks as often as the
# shortest limit says.

UNHELLOED = 0.8
HELLO_IN_TIME, UNREGISTERED, IDENT = 4.5, 0.4, 4.2
RARELY, IDENT_BETWEEN_LOOKS = 3.5, 3.8


def limits(unhelloed: float, unregistered: float, ident: float) -> dict[str, float]:
    return {
        "BROKER_OVERHOP_UNHELLOED_MAX_LIFETIME": unhelloed,
        "BROKER_OVERHOP_HELLOED_UNREGISTERED_MAX_LIFETIME": unregistered,
        "BROKER_OVERHOP_IDENT_REGISTER_TIMEOUT": ident,
    }


@pytest.fixture(scope="module")
def hasty(store: Database) -> Iterator[Broker]:
    with Broker(store, **limits(HELLO_IN_TIME, UNREGISTERED, IDENT)) as running:
        yield running


def challenged(hasty: Broker, seconds: int = 5) -> tuple[Peer, datetime]:
    """A connection that was sent IDENT, and its deadline."""
    client = Peer(hasty.overhop, register=False)
    client.hello()
    ident = client.read()
    assert (ident.t, ident.rid) == (Type.IDENT, "0")
    assert set(ident.p) == {"register_timeout_seconds", "reply_deadline"}
    assert ident.p["register_timeout_seconds"] == seconds
    return client, moment(ident.p["reply_deadline"])


@pytest.fixture(scope="module")
def hasty_about_hello(store: Database) -> Iterator[Broker]:
    with Broker(store, **limits(UNHELLOED, 10, 10)) as running:
        yield running


@pytest.mark.parametrize("said", [b"", BYTES["HELLO rid-1"][:-1], b"\0\0\1\0"])
def test_a_client_without_hello_in_time_is_closed_without_an_answer(hasty_about_hello: Broker, said: bytes) -> None:
    began = time.monotonic()
    with Peer(hasty_about_hello.overhop, register=False) as client:
        client.send(said)
        client.ended()
    assert UNHELLOED <= time.monotonic() - began < PATIENCE


def test_a_client_that_does_not_register_in_time_is_challenged_and_may_still_register(hasty: Broker) -> None:
    began = datetime.now(UTC)
    client, deadline = challenged(hasty)
    assert timedelta(seconds=UNREGISTERED + IDENT) <= deadline - began < timedelta(seconds=PATIENCE)
    with client:
        assert set(client.ask(Type.REGISTER)) == {"wid"}
        wait_until(lambda: datetime.now(UTC) > deadline + timedelta(seconds=0.3))
        client.ask(Type.PING)
        assert client.is_silent()


def test_a_client_that_does_not_answer_the_challenge_gets_an_error_and_is_closed(hasty: Broker) -> None:
    client, deadline = challenged(hasty)
    with client:
        message = client.read()
        assert (message.rid, error_code(message)) == ("0", Code.CONNECTION_TIMEOUT)
        assert datetime.now(UTC) >= deadline
        client.ended()


@pytest.mark.parametrize("t", [Type.HELLO, Type.PING, Type.ENQUEUE])
def test_only_register_answers_a_challenge(hasty: Broker, t: Type) -> None:
    client, _ = challenged(hasty)
    with client:
        client.violation(t)


def test_register_after_the_deadline_is_too_late_also_before_the_check(store: Database) -> None:
    with Broker(store, **limits(10, RARELY, IDENT_BETWEEN_LOOKS)) as broker:
        client, deadline = challenged(broker, 4)
        with client:
            wait_until(lambda: datetime.now(UTC) > deadline)  # and the next look is in some seconds
            message = client.reply(client.request(Type.REGISTER))
            assert error_code(message) is Code.REGISTER_TIMEOUT
            client.ended()


def test_a_worker_may_be_silent_for_as_long_as_it_likes(hasty: Broker) -> None:
    with Peer(hasty.overhop, register=False) as client:
        client.send(BYTES["HELLO rid-1"], BYTES["REGISTER r2"])  # in one go, so that it is not challenged
        assert client.read().t == Type.HI
        assert client.read().rid == "r2"
        assert client.is_silent(max(HELLO_IN_TIME, UNREGISTERED + IDENT) + 0.5)
        client.ask(Type.PING)
