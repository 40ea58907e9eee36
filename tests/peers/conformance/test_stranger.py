"""A JavaScript peer, written from docs/protocols/peerbus.md alone, and peers in Python understand each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from peers.client import PeerClient
from peers.codec import signing
from queues.backoff import Backoff
from tests.javascript import JavaScript, installed
from tests.peers.running import TAKEN_OVER, Join, Launch, WebBroker, compact, pending, unique
from tests.peers.vectors import SECRET, SIGNED
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import KEY, Database

STRANGER = Path(__file__).with_name("stranger")


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> Path:
    """The peer with its packages."""
    return installed(request.config, STRANGER, "peer.mjs")


class Stranger(JavaScript):
    """The JavaScript peer."""

    def __init__(self, program: Path, broker: WebBroker, name: str, secret: str = SECRET) -> None:
        self.name = name
        super().__init__(program, broker.uri(), KEY, name, secret)

    def do(self, what: str, **more: Any) -> None:
        """Give it a command."""
        self.tell(json.dumps({"do": what, **more}).encode() + b"\n")

    def wait_ready(self) -> Self:
        """Wait until it is registered."""
        self.until("registered")
        return self


Meet = Callable[..., Stranger]


@pytest.fixture
def meet(program: Path, broker: WebBroker) -> Iterator[Meet]:
    """Starts a stranger; its name is made the test's own unless it is to be `exact`."""
    strangers: list[Stranger] = []

    def start(name: str, exact: bool = False, at: WebBroker = broker, **options: Any) -> Stranger:
        strangers.append(Stranger(program, at, name if exact else unique(name), **options))
        return strangers[-1].wait_ready()

    yield start
    for stranger in strangers:
        stranger.end()


@pytest.fixture
def client(broker: WebBroker) -> Iterator[PeerClient]:
    """The project's own client, which verifies."""
    with PeerClient(broker.uri(), KEY, unique("client"), secret=SECRET, timeout=PATIENCE) as connected:
        yield connected


BODIES = [
    "null", "[]", "0", "-0.0", "1.0", "1E5", "12345678901234567890123", '""',
    '"é😀\u2028<>&"', r'"\u003c\/\ud83d\ude00\u0000"',
    '{"z":1,"a":{"a":1,"a":2}}', '{ "z" : [ 1 , 2 ] ,\n"s":" <{[ \\" " }',
]  # fmt: skip


def test_envelopes_that_the_other_implementation_signs_verify_in_our_client(meet: Meet, client: PeerClient) -> None:
    stranger = meet("stranger")
    for body in BODIES:
        stranger.do("send", to=client.name, body=body)
    messages = [client.receive(PATIENCE) for _ in BODIES]
    assert client.dropped == {}
    assert [message and message.envelope.raw_body for message in messages] == [
        signing.escape(signing.compact(body.encode())) for body in BODIES
    ]
    assert {message and message.sender for message in messages} == {stranger.name}


def test_envelopes_that_our_client_signs_verify_in_the_other_implementation(meet: Meet, client: PeerClient) -> None:
    stranger = meet("stranger")
    bodies = [json.loads(body) for body in BODIES]
    for body in bodies:
        client.send(stranger.name, body)
    client.broadcast("to all")
    said = stranger.until("message", len(bodies) + 1)
    assert [json.loads(each["body"]) for each in said] == [*bodies, "to all"]
    assert [each["to"] for each in said] == [stranger.name] * len(bodies) + ["*"]
    assert {each["from"] for each in said} == {client.name}


@pytest.mark.parametrize("signed", SIGNED[:2] + SIGNED[3:])
def test_the_stranger_takes_what_other_implementations_have_signed(
    meet: Meet, join: Join, store: Database, signed: Any
) -> None:
    store.execute("delete from queues_letterseen where id = %s", signed.fields["id"].encode())
    stranger, alice = meet("bob", exact=True), join("alice", exact=True)
    text = compact(signed.fields)[:-1] + b',"body":' + signed.body + b',"hmac":"' + signed.hmac.encode() + b'"}'
    alice.send(text)
    (said,) = stranger.until("message")
    assert said["body"].encode() == signed.body
    wait_until(lambda: alice.peers() and pending(store, "bob") == [], "its acknowledgement")


def test_the_stranger_neither_takes_nor_acknowledges_what_is_forged(meet: Meet, join: Join, store: Database) -> None:
    stranger, mallory = meet("stranger"), join("mallory")
    forged = mallory.say(stranger.name)
    assert stranger.until("forged") == [{"event": "forged", "id": forged}]
    stranger.do("ask")
    stranger.until("confirmed")
    assert pending(store, stranger.name) == [forged]


def test_a_stranger_with_another_secret_takes_nothing(meet: Meet, client: PeerClient) -> None:
    stranger = meet("stranger", secret="another secret of 32 bytes or more")
    sent = client.send(stranger.name, "hello")
    assert stranger.until("forged") == [{"event": "forged", "id": sent}]
    stranger.do("send", to=client.name, body="1")
    wait_until(lambda: client.receive(0.01) is None and sum(client.dropped.values()) == 1, "the drop")


def test_a_consumed_unacknowledged_letter_is_delivered_again_and_not_taken_twice(
    meet: Meet, client: PeerClient, store: Database
) -> None:
    stranger = meet("stranger")
    cut = client.send(stranger.name, {"cut": True})
    stranger.until("registered", 2)
    assert stranger.until("duplicate") == [{"event": "duplicate", "id": cut}]
    after = client.broadcast("after", confirm=True)
    assert [said["id"] for said in stranger.until("message", 2)] == [cut, after]
    wait_until(lambda: pending(store, stranger.name) == [], "its acknowledgements")


def test_a_letter_stays_until_it_is_consumed(meet: Meet, client: PeerClient, store: Database) -> None:
    stranger = meet("stranger")
    held = client.send(stranger.name, {"hold": True})
    stranger.until("message")
    stranger.do("cut")
    assert stranger.until("held already") == [{"event": "held already", "id": held}]
    assert pending(store, stranger.name) == [held]
    stranger.do("finish", id=held)
    wait_until(lambda: pending(store, stranger.name) == [], "its acknowledgement")


def test_the_stranger_and_our_client_talk_on_over_kills_of_the_broker(
    program: Path, launch: Launch, meet: Meet
) -> None:
    broker = launch().wait_ready()
    try:
        with PeerClient(
            broker.uri(), KEY, unique("client"), secret=SECRET, timeout=PATIENCE, reconnect=Backoff(0.05, 0.2)
        ) as client:
            stranger = meet("stranger", at=broker)
            received: list[Any] = []
            for n in range(300):
                stranger.do("send", to=client.name, body=str(n))
                client.send(stranger.name, n)
                if n in (100, 200):
                    broker = broker.killed()
            stranger.do("ask")
            stranger.until("confirmed")
            client.flush()
            while len(received) < 300:
                message = client.receive(PATIENCE)
                assert message is not None
                assert signing.verify(message.envelope.text, SECRET)
                received.append(message.body)
                client.ack(message)
            assert received == list(range(300))
            assert [json.loads(said["body"]) for said in stranger.until("message", 300)] == received
    finally:
        broker.stop()


def test_a_stranger_that_is_taken_over_does_not_come_back(meet: Meet, join: Join) -> None:
    stranger = meet("stranger")
    new = join(stranger.name, exact=True)
    assert stranger.until("closed") == [{"event": "closed", **TAKEN_OVER._asdict()}]
    assert stranger.wait() == 1
    assert stranger.name in new.peers()
