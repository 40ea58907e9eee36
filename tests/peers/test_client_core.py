"""A client's core without a connection: what it wants sent, and what it believes to be stored."""

from peers.client_core import ClientCore
from peers.codec import frames
from peers.codec.envelope import Envelope
from peers.errors import TakenOver
from tests.peers.vectors import SECRET

WELCOME = frames.peers_frame(["alice"])


def core() -> ClientCore:
    return ClientCore("t", "alice", SECRET, 10)


def established() -> ClientCore:
    made = core()
    made.connected()
    made.outgoing.clear()
    made.received(WELCOME)
    return made


def sent(made: ClientCore) -> list[frames.Frame]:
    parsed = [frames.parse_frame(each) for each in made.outgoing]
    made.outgoing.clear()
    return parsed


def send(made: ClientCore, *ids: str) -> None:
    for id in ids:
        made.send(made.write("bob", 1, id, "test"))


def ids(parsed: list[frames.Frame]) -> list[str]:
    return [frame.id if isinstance(frame, Envelope) else type(frame).__name__ for frame in parsed]


def test_nothing_but_the_register_leaves_before_the_welcome() -> None:
    made = core()
    send(made, "1")
    made.ask()
    assert sent(made) == []
    made.connected()
    send(made, "2")
    assert ids(sent(made)) == ["Register"]
    made.received(WELCOME)
    assert ids(sent(made)) == ["1", "2", "PeersRequest"]


def test_an_answer_confirms_what_was_sent_before_its_request_and_no_more() -> None:
    made = established()
    send(made, "1", "2")
    first = made.ask()
    send(made, "3")
    second = made.ask()
    made.received(frames.peers_frame(["alice", "bob"]))
    assert (first.names, first.done, second.done, made.unconfirmed) == (["alice", "bob"], True, False, 1)
    made.received(frames.peers_frame([]))
    assert (second.names, made.unconfirmed) == ([], 0)


def test_on_the_next_connection_the_unconfirmed_come_first_and_then_the_requests() -> None:
    made = established()
    send(made, "1")
    made.ask()
    made.received(WELCOME)
    send(made, "2", "3")
    answer = made.ask()
    made.disconnected(None, "")
    send(made, "4")
    assert sent(made) == []
    made.connected()
    made.received(WELCOME)
    assert ids(sent(made)) == ["Register", "2", "3", "4", "PeersRequest"]
    made.received(WELCOME)
    assert (answer.done, made.unconfirmed) == (True, 1)


def test_the_welcome_confirms_nothing() -> None:
    made = core()
    send(made, "1")
    answer = made.ask()
    made.connected()
    made.received(WELCOME)
    assert (answer.done, made.unconfirmed) == (False, 1)


def test_a_takeover_is_the_end_whatever_the_code() -> None:
    for code in (1000, 1008):
        made = established()
        assert made.disconnected(code, "taken over by a new connection") is None
        assert isinstance(made.error, TakenOver)


def test_a_close_of_an_established_connection_is_no_rejection() -> None:
    made = established()
    assert made.disconnected(1008, "slow consumer") is None
    assert made.error is None
