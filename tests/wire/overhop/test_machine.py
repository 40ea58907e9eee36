"""The life of a connection: every state with every event, and what time does to it."""

import pytest

from wire.overhop.codec.names import Type
from wire.overhop.machine import TABLE, Action, Conversation, Event, Limits, State

EXPECTED = """
               CONNECTED            HELLOED                 CHALLENGED               REGISTERED           CLOSED
HELLO          HI HELLOED           VIOLATION CLOSED        VIOLATION CLOSED         VIOLATION CLOSED     -
REGISTER       VIOLATION CLOSED     REGISTER REGISTERED     REGISTER REGISTERED      VIOLATION CLOSED     -
LATE_REGISTER  -                    -                       REGISTER_TIMEOUT CLOSED  -                    -
REQUEST        VIOLATION CLOSED     VIOLATION CLOSED        VIOLATION CLOSED         SERVE REGISTERED     -
WRONG          VIOLATION CLOSED     VIOLATION CLOSED        VIOLATION CLOSED         VIOLATION CLOSED     -
TOO_OLD        CLOSE CLOSED         CHALLENGE CHALLENGED    TIMEOUT CLOSED           -                    -
DISCONNECT     IGNORE CLOSED        IGNORE CLOSED           IGNORE CLOSED            IGNORE CLOSED        -
"""
LINES = EXPECTED.strip("\n").splitlines()
STARTS = [LINES[0].index(state.name) for state in State]
ROWS = [
    (state, Event[line.split()[0]], line[start:stop].split())
    for line in LINES[1:]
    for state, start, stop in zip(State, STARTS, [*STARTS[1:], None], strict=True)
]
LIMITS = Limits(unhelloed=10, helloed_unregistered=7, ident_register=2)


@pytest.mark.parametrize(("state", "event", "expected"), ROWS)
def test_every_event_in_every_state(state: State, event: Event, expected: list[str]) -> None:
    outcome = TABLE[state].get(event)
    assert ([outcome[0].name, outcome[1].name] if outcome else ["-"]) == expected


def conversation(state: State) -> Conversation:
    """A connection of time 0 that came to `state` at once, or CHALLENGED at 7."""
    it = Conversation(LIMITS, 0)
    if state is not State.CONNECTED:
        it.on_message(Type.HELLO, 0)
    if state is State.CHALLENGED:
        assert it.on_heartbeat(7) is Action.CHALLENGE
    if state is State.REGISTERED:
        it.on_message(Type.REGISTER, 0)
    if state is State.CLOSED:
        it.on(Event.DISCONNECT, 0)
    assert it.state is state
    return it


REQUESTS = [kind for kind in Type if Type.REGISTER < kind <= Type.LOG]
UNKNOWN = [-1, 0, 25, 99, 100, 2**63 - 1, *(kind for kind in Type if kind >= Type.OK)]


@pytest.mark.parametrize("t", REQUESTS)
def test_a_request_is_served_once_registered_and_ends_the_connection_before(t: int) -> None:
    it = conversation(State.REGISTERED)
    assert (it.on_message(t, 1), it.state) == (Action.SERVE, State.REGISTERED)
    for state in (State.CONNECTED, State.HELLOED, State.CHALLENGED):
        it = conversation(state)
        assert (it.on_message(t, 1), it.state) == (Action.VIOLATION, State.CLOSED)


@pytest.mark.parametrize("t", UNKNOWN)
@pytest.mark.parametrize("state", [State.CONNECTED, State.HELLOED, State.CHALLENGED, State.REGISTERED])
def test_an_unknown_type_or_one_of_a_server_ends_the_connection(t: int, state: State) -> None:
    it = conversation(state)
    assert (it.on_message(t, 1), it.state) == (Action.VIOLATION, State.CLOSED)


@pytest.mark.parametrize("state", [State.CONNECTED, State.HELLOED, State.CHALLENGED, State.REGISTERED])
def test_a_payload_of_the_wrong_shape_ends_the_connection(state: State) -> None:
    it = conversation(state)
    assert (it.on(Event.WRONG, 1), it.state) == (Action.VIOLATION, State.CLOSED)


def test_a_worker_says_hello_then_registers_and_has_all_the_time_then() -> None:
    it = Conversation(LIMITS, 100)
    assert (it.state, it.deadline) == (State.CONNECTED, 110)
    assert it.on_message(Type.HELLO, 103) is Action.HI
    assert (it.state, it.deadline) == (State.HELLOED, 110)
    assert it.on_message(Type.REGISTER, 104) is Action.REGISTER
    assert (it.state, it.deadline) == (State.REGISTERED, None)
    assert it.on_heartbeat(1e9) is Action.IGNORE
    assert it.on_message(Type.PING, 1e9) is Action.SERVE
    assert it.on_message(Type.HELLO, 1e9) is Action.VIOLATION


def test_a_client_without_hello_is_closed_without_an_answer() -> None:
    it = Conversation(LIMITS, 100)
    assert it.on_heartbeat(109.9) is Action.IGNORE
    assert it.on_heartbeat(110) is Action.CLOSE
    assert (it.state, it.deadline) == (State.CLOSED, None)


def test_a_hello_after_its_time_but_before_the_heartbeat_is_in_time() -> None:
    it = Conversation(LIMITS, 100)
    assert it.on_message(Type.HELLO, 111) is Action.HI
    assert it.on_heartbeat(117.9) is Action.IGNORE


def test_a_client_that_does_not_register_is_challenged_then_closed_with_an_error() -> None:
    it = Conversation(LIMITS, 100)
    it.on_message(Type.HELLO, 103)
    assert it.on_heartbeat(109.9) is Action.IGNORE
    assert it.on_heartbeat(110.5) is Action.CHALLENGE
    assert it.deadline == 112.5
    assert it.on_heartbeat(112.4) is Action.IGNORE
    assert it.on_heartbeat(112.5) is Action.TIMEOUT
    assert it.on_message(Type.REGISTER, 112.6) is Action.IGNORE


def test_a_challenge_is_met_by_registering_in_time() -> None:
    it = conversation(State.CHALLENGED)
    assert it.on_message(Type.REGISTER, 8.9) is Action.REGISTER
    assert it.on_heartbeat(1e9) is Action.IGNORE


def test_registering_after_the_deadline_is_too_late_also_before_the_heartbeat() -> None:
    it = conversation(State.CHALLENGED)
    assert it.on_message(Type.REGISTER, 9) is Action.REGISTER_TIMEOUT
    assert it.state is State.CLOSED


def test_a_registration_that_was_never_challenged_is_never_late() -> None:
    it = conversation(State.HELLOED)
    assert it.on_message(Type.REGISTER, 1e9) is Action.REGISTER


@pytest.mark.parametrize("t", [*Type, 99])
def test_nothing_happens_after_the_end(t: int) -> None:
    it = conversation(State.CLOSED)
    assert it.on_message(t, 1) is Action.IGNORE
    assert it.on(Event.WRONG, 1) is Action.IGNORE
    assert it.on_heartbeat(1e9) is Action.IGNORE
    assert (it.state, it.deadline) == (State.CLOSED, None)


@pytest.mark.parametrize(("limits", "cadence"), [((3, 4, 5), 3), ((4, 3, 5), 3), ((5, 4, 3), 3)])
def test_the_heart_beats_as_often_as_the_shortest_limit(limits: tuple[float, float, float], cadence: float) -> None:
    assert Limits(*limits).cadence == cadence


def test_by_default_the_heart_beats_every_two_seconds() -> None:
    assert Limits() == (10, 10, 2)
    assert Limits().cadence == 2
