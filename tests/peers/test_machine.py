"""A connection's states: what each frame does in which."""

import pytest

from peers.codec.envelope import Envelope
from peers.codec.frames import Ack, Frame, Ignored, PeersRequest, Register
from peers.machine import EVENTS, SERVED, TABLE, Action, Conversation, Event, State

REGISTER = Register("token", "alice")
FRAMES: list[Frame] = [REGISTER, Ack("1"), PeersRequest(), Envelope("1", "", "bob", "", "", "", "", b""), Ignored("x")]


def conversation(*events: Event) -> Conversation:
    made = Conversation()
    for event in events:
        made.on(event)
    return made


ESTABLISHED = (Event.REGISTER, Event.REGISTERED)


def test_a_peer_registers_and_is_welcomed() -> None:
    peer = Conversation()
    assert (peer.on_frame(REGISTER), peer.state) == (Action.BIND, State.REGISTERING)
    assert (peer.on(Event.REGISTERED), peer.state) == (Action.WELCOME, State.ESTABLISHED)


@pytest.mark.parametrize(
    ("before", "event"),
    [((), Event.UNFIT), ((), Event.NO_FRAME), ((Event.REGISTER,), Event.REFUSED)],
)
def test_a_peer_that_cannot_register_is_rejected(before: tuple[Event, ...], event: Event) -> None:
    peer = conversation(*before)
    assert peer.on(event) is Action.REJECT
    assert peer.state is State.CLOSED


def test_frames_sent_before_the_welcome_are_held_but_never_lost() -> None:
    peer = conversation(Event.REGISTER)
    assert [peer.on_frame(frame) for frame in FRAMES] == [
        Action.COUNT, Action.HOLD, Action.HOLD, Action.HOLD, Action.COUNT
    ]  # fmt: skip
    assert peer.state is State.REGISTERING


def test_an_established_peer_is_served_and_a_second_register_only_counted() -> None:
    peer = conversation(*ESTABLISHED)
    assert [peer.on_frame(frame) for frame in FRAMES] == [
        Action.COUNT, Action.ACKNOWLEDGE, Action.LIST, Action.ROUTE, Action.COUNT
    ]  # fmt: skip
    assert peer.state is State.ESTABLISHED


@pytest.mark.parametrize("before", [(), (Event.REGISTER,), ESTABLISHED])
def test_a_disconnect_closes(before: tuple[Event, ...]) -> None:
    peer = conversation(*before)
    assert peer.on(Event.DISCONNECT) is Action.NOTHING
    assert peer.state is State.CLOSED


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_events_outside_the_table_change_nothing(state: State, event: Event) -> None:
    peer = Conversation()
    peer.state = state
    action = peer.on(event)
    if event not in TABLE[state]:
        assert (action, peer.state) == (Action.NOTHING, state)
    else:
        assert (action, peer.state) == TABLE[state][event]


def test_nothing_happens_after_the_end() -> None:
    assert TABLE[State.CLOSED] == {}


def test_every_frame_is_an_event_that_an_established_connection_has() -> None:
    assert {type(frame) for frame in FRAMES} == set(EVENTS)
    assert set(EVENTS.values()) <= set(TABLE[State.ESTABLISHED])


def test_a_served_frame_has_the_tables_action_and_ends_no_connection() -> None:
    served = {kind: TABLE[State.ESTABLISHED][event] for kind, event in EVENTS.items()}
    assert served == {kind: (action, State.ESTABLISHED) for kind, action in SERVED.items()}
