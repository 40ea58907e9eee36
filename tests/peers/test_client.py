"""Both clients: messages between peers, brokers that go away, messages that are sent twice."""

from __future__ import annotations

import contextlib
import socket
import threading
from http import HTTPStatus
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from peers import async_connection, client_core, connection
from peers.client import AsyncPeerClient, PeerClient
from peers.codec import envelope, frames
from peers.codec.envelope import Envelope
from peers.codec.frames import Ack, PeersRequest, Rejection
from peers.errors import (
    InvalidEnvelope,
    InvalidToken,
    MessageTooLarge,
    NameClaimed,
    NoAnswer,
    Rejected,
    TakenOver,
    UnsupportedVersion,
    UnusableName,
    WeakSecret,
)
from tests.peers.broker import FakeBroker, Lost
from tests.peers.vectors import SECRET
from wire.client.errors import ConnectionLost, ProtocolViolation, ReplyTimeout
from wire.client.reconnecting import Event

Client = Any


def letter(id: str, body: bytes = b'"hello"', sender: str = "bob", **given: Any) -> bytes:
    return envelope.build(**{"sender": sender, "to": "alice", "secret": SECRET} | given, body=body, id=id).text


def hurry(client: Client, timeout: float) -> None:
    """From now on wait only so long for answers; connecting may have taken its time."""
    inner: Any = getattr(client, "_client", client)
    inner._timeout = timeout


# Connecting


def test_a_client_registers_and_lists_the_connected_peers(client: Client, broker: FakeBroker) -> None:
    with client("alice", token="secret token") as alice, client("bob"):
        assert broker.tokens == ["secret token", "t"]
        assert alice.peers() == ["alice", "bob"]
        assert alice.name == "alice"


@pytest.mark.parametrize(
    ("rejection", "error"),
    [
        (frames.INVALID_TOKEN, InvalidToken),
        (frames.NAME_CLAIMED, NameClaimed),
        (frames.UNSUPPORTED_VERSION, UnsupportedVersion),
        (frames.UNUSABLE_NAME, UnusableName),
        (frames.PERSISTENCE_FAILED, Rejected),
        (Rejection(1013, ""), Rejected),
    ],
)
def test_a_rejection_is_raised_with_its_code_and_reason(
    client: Client, broker: FakeBroker, rejection: Rejection, error: type[Rejected]
) -> None:
    broker.welcome = lambda connection: rejection
    with pytest.raises(Rejected) as raised, client():
        pytest.fail("connected")
    assert type(raised.value) is error
    assert (raised.value.code, raised.value.reason) == rejection
    assert str(raised.value) == f"{rejection.reason or 'no reason given'} ({rejection.code})"


def test_a_refused_connection_is_an_os_error(client: Client, broker: FakeBroker) -> None:
    broker.stop()
    with pytest.raises(ConnectionRefusedError), client():
        pytest.fail("connected")
    broker.start()


def test_a_server_without_websockets_is_a_protocol_violation(client: Client, broker: FakeBroker) -> None:
    def refuse(connection: Any, request: Any) -> Any:
        return connection.respond(HTTPStatus.NOT_FOUND, "no\n")

    with serve(lambda connection: None, "127.0.0.1", 0, process_request=refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        real, broker.port = broker.port, server.socket.getsockname()[1]
        with pytest.raises(ProtocolViolation, match=r"^no WebSocket there: .*404"), client():
            pytest.fail("connected")
        broker.port = real
        server.shutdown()
        thread.join()


def test_a_server_that_does_not_answer_with_peers_speaks_something_else(client: Client, broker: FakeBroker) -> None:
    broker.welcome = lambda connection: frames.deliver_frame("1", letter("1"))
    with (
        pytest.raises(ProtocolViolation, match=r"^the register was answered with something else than peers$"),
        client(),
    ):
        pytest.fail("connected")


def test_a_broker_that_drops_the_connection_at_once_is_a_lost_connection(client: Client, broker: FakeBroker) -> None:
    def drop(connection: ServerConnection) -> Rejection:
        connection.socket.shutdown(socket.SHUT_RDWR)
        return frames.NO_FRAME

    broker.welcome = drop
    with pytest.raises(ConnectionLost, match=r"^no close frame received or sent$"), client():
        pytest.fail("connected")


def test_a_silent_broker_is_not_waited_for(
    client: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connection, async_connection):  # only the answer is not waited for: opening may take its time
        opening: Any = module.connect
        monkeypatch.setattr(
            module, "connect", lambda url, opening=opening, **given: opening(url, **given | {"open_timeout": 60})
        )
    release = threading.Event()

    def wait(connection: ServerConnection) -> None:
        release.wait(10)

    broker.welcome = wait
    with pytest.raises(ReplyTimeout, match=r"^no answer to the register for 0\.2 s$"), client(timeout=0.2):
        pytest.fail("connected")
    release.set()


@pytest.mark.parametrize("url", ["http://localhost", "localhost:8000", ""])
def test_an_invalid_url_is_refused(url: str) -> None:
    for make in (PeerClient, AsyncPeerClient):
        with pytest.raises(ValueError, match="is no WebSocket URL, such as ws://"):
            make(url, "t", "alice", secret=None)


def test_bad_options_are_refused(client: Client) -> None:
    with pytest.raises(WeakSecret):
        client(secret="short")
    with pytest.raises(ValueError, match="one id or more"):
        client(dedupe_size=0)


def test_a_client_that_is_not_connected_says_so(client: Client) -> None:
    alice = client()
    for use in (lambda: alice.send("bob", 1), alice.peers, lambda: alice.receive(0.1)):
        with pytest.raises(ConnectionLost, match=r"^not connected$"):
            use()
    alice.close()


def test_a_closed_client_says_so(client: Client) -> None:
    with client() as alice:
        pass
    with pytest.raises(ConnectionLost, match=r"^not connected$"):
        alice.receive(0.1)


# Sending


def test_a_message_arrives_signed_and_as_it_was_sent(client: Client) -> None:
    body = {"text": "<grün> & \u2028", "numbers": [1, -2.5, 10**17], "nothing": None}
    with client("bob") as bob, client("alice") as alice:
        id = alice.send("bob", body)
        message = bob.receive(10)
        assert (message.id, message.sender, message.body) == (id, "alice", body)
        assert (message.envelope.source, message.envelope.kind, message.is_broadcast) == ("peer-bus", "msg", False)
        assert len(message.envelope.hmac) == 64
        assert repr(message) == f"<Message {id} from 'alice'>"


def test_a_broadcast_reaches_all_others(client: Client, broker: FakeBroker) -> None:
    with client("alice") as alice, client("bob") as bob, client("carol") as carol:
        id = alice.broadcast([1], confirm=True)
        for peer in (bob, carol):
            message = peer.receive(10)
            assert (message.id, message.body, message.is_broadcast) == (id, [1], True)
            peer.ack(message)
            peer.peers()
        assert broker.acked == [f"{id}|bob", f"{id}|carol"]
        assert alice.receive(0.05) is None


def test_a_message_sent_again_under_the_same_id_is_one(client: Client, broker: FakeBroker) -> None:
    with client() as alice:
        assert [alice.send("bob", 1, id="1", source="test", confirm=True) for _ in range(3)] == ["1", "1", "1"]
    assert [(each.id, each.source) for each in broker.stored] == [("1", "test")]


def test_a_letter_that_the_broker_would_drop_is_refused_at_once(client: Client, broker: FakeBroker) -> None:
    with client() as alice:
        with pytest.raises(InvalidEnvelope):
            alice.send("", 1)
        with pytest.raises(MessageTooLarge):
            alice.send("bob", "x" * 2**20)
        assert alice.unconfirmed == 0
    assert broker.stored == []


def test_a_confirmed_send_is_stored_when_it_returns(client: Client, broker: FakeBroker) -> None:
    with client() as alice:
        alice.send("bob", 1, id="1")
        assert alice.unconfirmed == 1
        alice.send("bob", 2, id="2", confirm=True)
        assert [each.id for each in broker.stored] == ["1", "2"]
        assert (alice.unconfirmed, broker.asked) == (0, 1)
        alice.flush()
        assert broker.asked == 1


def test_the_list_of_peers_confirms_too(client: Client) -> None:
    with client() as alice:
        alice.send("bob", 1)
        alice.peers()
        assert alice.unconfirmed == 0


def test_an_unconfirmed_letter_raises_in_time(client: Client, broker: FakeBroker) -> None:
    broker.before = lambda connection, frame: not isinstance(frame, PeersRequest)
    with client() as alice:
        alice.send("bob", 1, id="1")
        with pytest.raises(NoAnswer, match=r"^the broker has not answered in time$"):
            alice.flush(0.1)
        broker.before = lambda connection, frame: True
        broker.cut("alice")
        alice.flush()
        assert [each.id for each in broker.stored] == ["1"]


def test_a_client_asks_for_confirmations_by_itself(
    client: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_core, "CONFIRM_COUNT", 10)
    with client() as alice:
        for number in range(25):
            alice.send("bob", number)
        broker.wait(lambda: broker.asked == 2)
        broker.deliver("alice", "1", letter("1"))  # it comes behind the answers
        assert alice.receive(10).id == "1"
        assert alice.unconfirmed == 5


def test_large_messages_are_confirmed_by_their_bytes(
    client: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_core, "CONFIRM_BYTES", 1000)
    with client() as alice:
        alice.send("bob", "x" * 600)
        alice.send("bob", "x" * 600)
        broker.wait(lambda: broker.asked == 1)


@pytest.mark.parametrize(("limit", "value"), [("UNCONFIRMED_COUNT", 3), ("UNCONFIRMED_BYTES", 700)])
def test_a_sender_waits_while_too_much_is_unconfirmed(
    client: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(client_core, limit, value)
    monkeypatch.setattr(client_core, "CONFIRM_COUNT", 1)
    broker.before = lambda connection, frame: not isinstance(frame, PeersRequest)
    alice = client()
    alice.connect()
    hurry(alice, 0.3)
    for number in range(3):
        alice.send("bob", number)
    with pytest.raises(NoAnswer):
        alice.send("bob", 3)
    assert alice.unconfirmed == 3
    alice.abort()
    broker.wait(lambda: not broker.connected)  # it has taken all that was sent
    assert [each.body for each in broker.stored] == [0, 1, 2]


def test_a_client_that_is_closed_waits_for_the_confirmation(client: Client, broker: FakeBroker) -> None:
    with client() as alice:
        alice.send("bob", 1)
    assert len(broker.stored) == broker.asked == 1


def test_a_client_that_cannot_be_sure_says_so_when_it_is_closed(client: Client, broker: FakeBroker) -> None:
    broker.before = lambda connection, frame: not isinstance(frame, PeersRequest)
    alice = client()
    alice.connect()
    hurry(alice, 0.2)
    alice.send("bob", 1)
    with pytest.raises(NoAnswer):
        alice.close()
    broker.wait(lambda: not broker.connected)


def test_after_an_exception_nothing_is_waited_for(client: Client, broker: FakeBroker) -> None:
    broker.before = lambda connection, frame: not isinstance(frame, PeersRequest)
    alice = client()
    with contextlib.suppress(KeyError), alice:
        alice.send("bob", 1)
        raise KeyError
    assert alice.unconfirmed == 1
    broker.wait(lambda: not broker.connected)


# Receiving


def test_a_message_is_acknowledged_when_the_next_one_is_asked_for(client: Client, broker: FakeBroker) -> None:
    for id in "123":
        broker.deliver("alice", "key " + id, letter(id))
    seen = []
    with client() as alice:
        alice.peers()  # all three are here by now
        for message in alice.messages(0.2):
            alice.peers()
            seen.append((message.id, list(broker.acked)))
    assert seen == [("1", []), ("2", ["key 1"]), ("3", ["key 1", "key 2"])]
    broker.wait(lambda: not broker.connected)  # it has taken all that was sent
    assert broker.acked == ["key 1", "key 2", "key 3"]


def test_a_message_may_be_acknowledged_earlier_and_once(client: Client, broker: FakeBroker) -> None:
    broker.deliver("alice", "1", letter("1"))
    with client() as alice:
        alice.peers()  # it is here by now
        for message in alice.messages(0.2):
            alice.ack(message)
            alice.ack(message)
            alice.peers()
            assert broker.acked == ["1"]
        alice.peers()
        assert broker.acked == ["1"]


def test_a_message_that_is_being_worked_on_when_its_loop_is_left_is_not_acknowledged(
    client: Client, broker: FakeBroker
) -> None:
    for id in "12":
        broker.deliver("alice", id, letter(id))
    with client() as alice:
        with contextlib.closing(alice.messages()) as messages:
            for message in messages:
                if message.id == "2":
                    break
        alice.peers()
        assert broker.acked == ["1"]
        broker.cut("alice")
        assert alice.receive(10).id == "2"


def test_a_handler_that_returns_acknowledges_and_one_that_raises_does_not(client: Client, broker: FakeBroker) -> None:
    for id in "12":
        broker.deliver("alice", id, letter(id))
    handled = []

    def handle(message: Any) -> None:
        handled.append(message.id)
        if message.id == "2" and handled.count("2") == 1:
            raise KeyError("2")

    with client() as alice:
        with pytest.raises(KeyError):
            alice.run(handle)
        alice.peers()
        assert broker.acked == ["1"]
        broker.cut("alice")
        alice.peers()  # connected again, and it has come
        alice.run(handle, timeout=0.5)
        assert handled == ["1", "2", "2"]
        alice.peers()
        assert broker.acked == ["1", "2"]


def test_several_messages_may_be_in_hand_and_acknowledged_in_any_order(client: Client, broker: FakeBroker) -> None:
    for id in "123":
        broker.deliver("alice", id, letter(id))
    with client() as alice:
        first, second, third = (alice.receive(10) for _ in range(3))
        for message in (third, first, second):
            alice.ack(message)
        alice.peers()
        assert broker.acked == ["3", "1", "2"]


def test_a_released_letter_is_delivered_again_after_a_reconnect(client: Client, broker: FakeBroker) -> None:
    broker.deliver("alice", "1", letter("1"))
    with client() as alice:
        message = alice.receive(10)
        alice.release(message)
        alice.ack(message)
        broker.cut("alice")
        assert alice.receive(10).id == "1"
        assert broker.acked == []


def test_nothing_comes_is_none(client: Client) -> None:
    with client() as alice:
        assert alice.receive(0.05) is None
        assert alice.receive(0) is None
        assert list(alice.messages(0.05)) == []


# Frames that must not reach the host

FORGED = letter("2").replace(b"hello", b"jello")
UNSIGNED = letter("2", secret=None)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (frames.deliver_frame("2", FORGED), "signature does not verify"),
        (frames.deliver_frame("2", UNSIGNED), "signature does not verify"),
        (frames.deliver_frame("2", letter("2", secret=SECRET[::-1])), "signature does not verify"),
        (frames.deliver_frame("", letter("2")), "deliver without a delivery key"),
        (frames.deliver_frame("2", letter("2").replace(b'"v1"', b'"v2"')), "unsupported protocol version"),
        (frames.deliver_frame("2", b'"x"'), "not an object"),
        (b'{"type":"deliver","envelope":%s}' % letter("2"), "deliver without a delivery key"),
        (b"x", "not JSON"),
        (frames.ack_frame("2"), "frame of the other side"),
        (frames.peers_frame(["eve"]), "peers without a request"),
    ],
)
def test_a_bad_frame_is_dropped_unacknowledged_and_counted(
    client: Client, broker: FakeBroker, frame: bytes, reason: str
) -> None:
    with client() as alice:
        broker.push("alice", frame)
        broker.deliver("alice", "3", letter("3"))
        message = alice.receive(10)
        assert message.id == "3"
        alice.ack(message)
        assert alice.peers() == ["alice"]
        assert broker.acked == ["3"]
        assert dict(alice.dropped) == {reason: 1}


def test_without_a_secret_nothing_is_signed_or_verified(client: Client, broker: FakeBroker) -> None:
    with client(secret=None) as alice:
        for id, text in (("1", letter("1", secret=None)), ("2", FORGED)):
            broker.deliver("alice", id, text)
            assert alice.receive(10).envelope.text == text
        alice.send("bob", 1, confirm=True)
        assert (broker.stored[0].hmac, alice.dropped) == ("", {})


def test_a_binary_message_means_nothing(client: Client, broker: FakeBroker) -> None:
    with client() as alice:
        broker.connected["alice"].send(frames.deliver_frame("1", letter("1")), text=False)
        assert alice.peers() == ["alice"]
        assert alice.receive(0.05) is None


# Connections that are lost


def test_a_lost_connection_is_made_again_under_the_same_name(client: Client, broker: FakeBroker) -> None:
    with client("alice", token="mine") as alice:
        for count in (1, 2, 3):
            broker.cut("alice")
            broker.deliver("alice", str(count), letter(str(count)))
            message = alice.receive(10)
            assert message.id == str(count)
            alice.ack(message)
        alice.peers()
    assert broker.tokens == ["mine"] * 4
    assert broker.acked[-1] == "3"


@pytest.mark.parametrize("how", [frames.SLOW_CONSUMER, frames.GOING_AWAY, Rejection(1000, "bye"), Rejection(1011, "")])
def test_after_any_close_code_the_client_reconnects(
    client: Client, broker: FakeBroker, how: Rejection
) -> None:
    with client() as alice:
        broker.close("alice", how)
        assert alice.peers() == ["alice"]
        assert broker.connections == 2


def test_a_broker_that_comes_back_later_is_found_again(client: Client, broker: FakeBroker) -> None:
    with client() as alice:
        broker.stop()
        assert alice.receive(0.3) is None
        broker.deliver("alice", "1", letter("1"))
        broker.start()
        assert alice.receive(10).id == "1"


def test_letters_sent_while_the_broker_is_away_arrive_when_it_is_back(client: Client, broker: FakeBroker) -> None:
    with client() as alice:
        broker.stop()
        assert alice.receive(0.1) is None
        ids = [alice.send("bob", number) for number in range(5)]
        with pytest.raises(NoAnswer):
            alice.flush(0.1)
        broker.start()
        alice.flush()
        assert [each.id for each in broker.stored] == ids


@pytest.mark.parametrize("stored", [False, True], ids=["lost on its way", "its confirmation lost"])
def test_unconfirmed_letters_are_sent_again_in_order_and_stored_once(
    client: Client, broker: FakeBroker, stored: bool
) -> None:
    cuts = iter([True])

    def cut_at_the_third(connection: Any, frame: frames.Frame) -> bool:
        if isinstance(frame, Envelope) and frame.body == 3 and next(cuts, False):
            if stored:
                broker.stored.append(frame)
            raise Lost
        return True

    broker.before = cut_at_the_third
    with client() as alice:
        ids = [alice.send("bob", number) for number in range(1, 7)]
        alice.flush()
    assert [each.id for each in broker.stored] == ids
    assert broker.connections == 2


def test_confirmed_letters_are_not_sent_again(client: Client, broker: FakeBroker) -> None:
    received = []
    broker.before = lambda connection, frame: received.append(frame) or True  # type: ignore[func-returns-value]
    with client() as alice:
        alice.send("bob", 1, id="1", confirm=True)
        broker.cut("alice")
        alice.send("bob", 2, id="2", confirm=True)
    assert [frame.id for frame in received if isinstance(frame, Envelope)] == ["1", "2"]


def test_a_message_whose_acknowledgement_was_lost_is_acknowledged_again_and_not_handed_over(
    client: Client, broker: FakeBroker
) -> None:
    broker.deliver("alice", "k1", letter("1"))
    broker.before = lambda connection, frame: not isinstance(frame, Ack)
    with client() as alice:
        alice.ack(alice.receive(10))
        alice.peers()
        broker.before = lambda connection, frame: True
        broker.cut("alice")
        broker.deliver("alice", "k2", letter("2"))
        assert alice.receive(10).id == "2"
        alice.peers()
        assert broker.acked == ["k1"]


def test_a_message_in_hand_while_the_connection_is_lost_is_not_handed_over_twice(
    client: Client, broker: FakeBroker
) -> None:
    broker.deliver("alice", "1", letter("1"))
    with client() as alice:
        first = alice.receive(10)
        broker.cut("alice")
        broker.wait(lambda: not broker.connected)
        broker.deliver("alice", "2", letter("2"))
        second = alice.receive(10)
        alice.peers()
        assert broker.acked == []
        alice.ack(first)
        alice.ack(second)
        alice.peers()
        assert broker.acked == ["1", "2"]


def test_messages_waiting_while_the_connection_is_lost_keep_their_order(client: Client, broker: FakeBroker) -> None:
    for id in "123":
        broker.deliver("alice", id, letter(id))
    with client() as alice:
        alice.peers()  # all three are here by now
        broker.cut("alice")
        broker.wait(lambda: not broker.connected)
        broker.deliver("alice", "4", letter("4"))
        seen = []
        with contextlib.closing(alice.messages(10)) as messages:
            for message in messages:
                seen.append(message.id)
                if message.id == "4":
                    alice.ack(message)
                    break
        assert seen == ["1", "2", "3", "4"]
        alice.peers()
    assert broker.acked[-4:] == ["1", "2", "3", "4"]


def test_an_id_that_was_forgotten_is_handed_over_again(client: Client, broker: FakeBroker) -> None:
    broker.before = lambda connection, frame: frame != Ack("1")
    for id in "123":
        broker.deliver("alice", id, letter(id))
    with client(dedupe_size=2) as alice:
        alice.peers()  # all three are here by now
        assert [message.id for message in alice.messages(0.2)] == ["1", "2", "3"]
        alice.peers()
        broker.cut("alice")
        alice.peers()  # connected again, and it has come
        assert [message.id for message in alice.messages(0.2)] == ["1"]


def test_a_client_that_is_taken_over_does_not_fight(client: Client, broker: FakeBroker) -> None:
    first = client()
    first.connect()
    with client() as second:
        for use in (lambda: first.receive(10), lambda: first.send("bob", 1), first.peers):
            with pytest.raises(TakenOver, match=r"^taken over by a new connection$"):
                use()
        assert second.peers() == ["alice"]
    first.close()
    assert broker.connections == 2


def test_letters_a_taken_over_client_has_not_handed_over_go_to_its_successor(
    client: Client, broker: FakeBroker
) -> None:
    for id in "12":
        broker.deliver("alice", id, letter(id))
    first = client()
    first.connect()
    assert first.receive(10).id == "1"
    first.peers()
    with client() as second:
        second.peers()  # both are here by now
        assert [message.id for message in second.messages(0.2)] == ["1", "2"]
    with pytest.raises(TakenOver):
        first.peers()
    with pytest.raises(TakenOver):
        first.receive(10)
    first.abort()


def test_a_rejection_that_would_come_again_ends_the_client(client: Client, broker: FakeBroker) -> None:
    alice = client()
    alice.connect()
    broker.welcome = lambda connection: frames.INVALID_TOKEN
    broker.cut("alice")
    for use in (lambda: alice.receive(10), alice.peers):
        with pytest.raises(InvalidToken):
            use()
    alice.close()


def test_a_rejection_that_may_pass_is_tried_again(client: Client, broker: FakeBroker) -> None:
    rejections = iter([frames.PERSISTENCE_FAILED, frames.GOING_AWAY, frames.NO_FRAME])
    with client() as alice:
        broker.welcome = lambda connection: next(rejections, None)
        broker.cut("alice")
        assert alice.peers() == ["alice"]


def test_a_broker_that_speaks_something_else_for_a_while_is_tried_again(client: Client, broker: FakeBroker) -> None:
    answers = iter([frames.ack_frame("1"), b"x"])
    with client() as alice:
        broker.welcome = lambda connection: next(answers, None)
        broker.cut("alice")
        assert alice.peers() == ["alice"]


def test_a_host_is_told_of_each_connection(client: Client, broker: FakeBroker) -> None:
    events = list[Event]()
    with client("alice", on_event=events.append) as alice:
        alice.send("bob", 1, confirm=True)
        broker.before = lambda connection, frame: False  # nothing is taken
        alice.send("bob", 2)
        broker.cut("alice")
        broker.wait(lambda: "alice" not in broker.connected)
        broker.before = lambda connection, frame: True
        alice.flush()
    names = [event.name for event in events]
    assert names == ["connected", "disconnected", "reconnecting", "connected", "resent", "closed"]
    assert [event.count for event in events if event.name == "resent"] == [1]
    assert [event.again for event in events if event.name == "connected"] == [False, True]


def test_without_reconnecting_a_lost_connection_is_final(client: Client, broker: FakeBroker) -> None:
    events = list[Event]()
    with contextlib.suppress(ConnectionLost), client("alice", reconnect=False, on_event=events.append) as alice:
        broker.cut("alice")
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                alice.receive()
    assert [event.name for event in events] == ["connected", "disconnected", "closed"]
