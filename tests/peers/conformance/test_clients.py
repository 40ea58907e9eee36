"""The project's own clients against the real broker."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokersite.environment import CHECKOUT
from peers.client import AsyncPeerClient, Message, PeerClient
from peers.codec import frames
from peers.codec.envelope import MAX_FRAME
from peers.errors import InvalidToken, NameClaimed, Rejected, TakenOver, UnusableName
from queues.backoff import Backoff
from tests.peers.broker import Blocking
from tests.peers.manage import manage, model_host
from tests.peers.running import Launch, WebBroker, connected, unique
from tests.peers.vectors import SECRET
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import KEY, Database


@pytest.fixture(params=["blocking", "asyncio"])
def client(request: pytest.FixtureRequest, broker: WebBroker) -> Iterator[Any]:
    """Makes clients of each kind in turn."""

    def options(given: dict[str, Any]) -> dict[str, Any]:
        return {"secret": SECRET, "timeout": PATIENCE, "reconnect": Backoff(0.05, 0.5)} | given

    if request.param == "blocking":
        yield lambda name, token=KEY, at=broker, **given: PeerClient(at.uri(), token, name, **options(given))
        return
    with asyncio.Runner() as runner:
        yield lambda name, token=KEY, at=broker, **given: Blocking(
            runner, AsyncPeerClient(at.uri(), token, name, **options(given))
        )


@pytest.fixture(autouse=True)
def _all_have_left(store: Database) -> Iterator[None]:
    """No peer of this test is connected when the next one begins."""
    yield
    wait_until(lambda: not connected(store), "the end of all connections")


def taken(peer: Any, count: int) -> list[Message]:
    """The next messages, acknowledged."""
    messages = []
    for _ in range(count):
        message = peer.receive(PATIENCE)
        assert message is not None
        peer.ack(message)
        messages.append(message)
    peer.peers()
    return messages


def test_messages_go_from_peer_to_peer_in_order(client: Any) -> None:
    alice, bob = unique("alice"), unique("bob")
    body = {"text": "<grün> & \u2028 \x00", "numbers": [1, -2.5, 10**17], "nothing": None}
    with client(bob) as receiver, client(alice) as sender:
        assert {alice, bob} <= set(sender.peers())
        ids = [sender.send(bob, body, confirm=number == 99) for number in range(100)]
        messages = taken(receiver, 100)
    assert [message.id for message in messages] == ids
    assert messages[0].body == body
    assert messages[0].sender == alice


def test_a_letter_to_an_absent_peer_waits_for_it(client: Any) -> None:
    alice, bob = unique("alice"), unique("bob")
    with client(bob):
        pass
    with client(alice) as sender:
        id = sender.send(bob, 1)
    with client(bob) as receiver:
        assert [message.id for message in taken(receiver, 1)] == [id]
    with client(bob) as receiver:
        assert receiver.receive(0.3) is None


def test_a_broadcast_reaches_each_of_the_others_once(client: Any) -> None:
    names = [unique(name) for name in ("alice", "bob", "carol")]
    with client(names[0]) as alice, client(names[1]) as bob, client(names[2]) as carol:
        id = alice.broadcast("hello", confirm=True)
        for peer in (bob, carol):
            assert [(message.id, message.is_broadcast) for message in taken(peer, 1)] == [(id, True)]
        assert alice.receive(0.2) is None


def test_an_unacknowledged_letter_is_delivered_again(client: Any) -> None:
    alice, bob = unique("alice"), unique("bob")
    with client(bob) as receiver, client(alice) as sender:
        ids = [sender.send(bob, number) for number in range(3)]
        sender.flush()
        assert receiver.receive(PATIENCE).id == ids[0]
        receiver.abort()
    with client(bob) as receiver:
        assert [message.id for message in taken(receiver, 3)] == ids


def test_a_client_that_is_taken_over_does_not_fight(client: Any) -> None:
    name = unique("alice")
    first = client(name)
    first.connect()
    with client(name) as second:
        with pytest.raises(TakenOver):
            first.receive(PATIENCE)
        assert name in second.peers()
    first.abort()


def test_refusals_have_names(client: Any, other_key: str) -> None:
    mine = unique("alice")
    with client(mine):
        pass
    for name, token, error in (
        (mine, "wrong", InvalidToken),
        (mine, other_key, NameClaimed),
        ("queue:a", KEY, UnusableName),
        ("", KEY, Rejected),
    ):
        with pytest.raises(Rejected) as raised, client(name, token):
            pytest.fail("registered")
        assert type(raised.value) is error


def test_the_largest_message_arrives(client: Any) -> None:
    alice, bob = unique("alice"), unique("bob")
    with client(bob) as receiver, client(alice) as sender:
        size = MAX_FRAME - 600
        sender.send(bob, "x" * size, confirm=True)
        assert len(taken(receiver, 1)[0].body) == size


def test_peers_live_through_a_broker_that_is_killed(launch: Launch) -> None:
    alice, bob = unique("alice"), unique("bob")
    options: dict[str, Any] = {"secret": SECRET, "reconnect": Backoff(0.05, 0.2), "timeout": 60.0}
    running = launch().wait_ready()
    received: list[int] = []
    wanted = 300
    registered = threading.Event()

    def receive(url: str) -> None:
        with PeerClient(url, KEY, bob, **options) as peer:
            registered.set()
            for message in peer.messages(60):
                received.append(message.body)
                if len(received) == wanted:
                    peer.ack(message)
                    return

    receiver = threading.Thread(target=receive, args=(running.uri(),))
    try:
        receiver.start()
        assert registered.wait(PATIENCE)
        with PeerClient(running.uri(), KEY, alice, **options) as sender:
            for number in range(wanted):
                sender.send(bob, number)
                if number in (100, 200):
                    running = running.killed()
        receiver.join(60)
        assert received == list(range(wanted))
    finally:
        running.stop()


def test_lines_cross_the_pipe(broker: WebBroker) -> None:
    name = unique("alice")
    piped = manage("peerpipe", "--url", broker.uri(), "--token", KEY)
    try:
        piped.tell(b'{"protocol_version":"v1","type":"register","name":"%s"}\n' % name.encode())
        assert name in json.loads(piped.next_line())["names"]
        piped.tell(frames.peers_request() + b"\n")
        assert name in json.loads(piped.next_line())["names"]
        assert piped.finish() == (0, [], "")
    finally:
        piped.end()


async def test_a_host_of_a_language_model_drains_what_was_sent_before(broker: WebBroker) -> None:
    alice, model = unique("alice"), unique("model")
    async with AsyncPeerClient(broker.uri(), KEY, model, secret=SECRET):
        pass
    async with AsyncPeerClient(broker.uri(), KEY, alice, secret=SECRET) as peer:
        await peer.send(model, "hello", confirm=True)
        async with model_host(broker.uri(), token=KEY, name=model, secret=SECRET) as host:
            drained = (await host.call_tool("drain", {})).structured_content
            assert drained is not None
            assert [message["body"] for message in drained["messages"]] == ["hello"]
            await host.call_tool("send", {"to": alice, "body": "hello yourself"})
        answer = await peer.receive(PATIENCE)
        assert answer is not None
        assert (answer.body, answer.sender) == ("hello yourself", model)
        await peer.ack(answer)
    async with AsyncPeerClient(broker.uri(), KEY, model, secret=SECRET) as again:
        assert await again.receive(0.3) is None


EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$", (Path(CHECKOUT) / "docs/protocols/peerbus.md").read_text(), re.M | re.S
)


@pytest.mark.parametrize("example", EXAMPLES, ids=["client", "websocket"])
def test_the_examples_of_the_page_do_what_they_say(
    broker: WebBroker, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert KEY == "dev-key"
    url = "ws://127.0.0.1:8000/ws/peerbus"
    assert url in example
    exec(example.replace(url, broker.uri()), {})
    printed = capsys.readouterr().out.splitlines()
    if "PeerClient" in example:
        assert printed == ["['alice', 'bob']", "alice {'hello': 'world'}", "alice to all who are connected"]
    else:
        assert printed == ["['carol']", "{'note': 'to <myself>'}", "['carol']"]
