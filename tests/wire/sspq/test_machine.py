"""The slot's table: every state with every event, and how retries are counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.sspq import codec
from wire.sspq.machine import (
    PACKET_EVENTS,
    TABLE,
    Action,
    Event,
    Slot,
    State,
    deliveries_allowed,
    remaining,
)

# State, event: action, state after it. A row that is missing is ignored and changes nothing.
EXPECTED = """
IDLE          RECEIVE       WAIT          WAITING
IDLE          DEAD_RECEIVE  WAIT_DEAD     WAITING_DEAD
IDLE          CONFIRM       IGNORE        IDLE
IDLE          DELIVERED     PUT_BACK      IDLE
IDLE          REFUSED       IGNORE        IDLE
IDLE          DISCONNECT    IGNORE        CLOSED
WAITING       RECEIVE       IGNORE        WAITING
WAITING       DEAD_RECEIVE  IGNORE        WAITING
WAITING       CONFIRM       IGNORE        WAITING
WAITING       DELIVERED     DELIVER       HOLDING
WAITING       REFUSED       REFUSE        IDLE
WAITING       DISCONNECT    WITHDRAW      CLOSED
WAITING_DEAD  RECEIVE       IGNORE        WAITING_DEAD
WAITING_DEAD  DEAD_RECEIVE  IGNORE        WAITING_DEAD
WAITING_DEAD  CONFIRM       IGNORE        WAITING_DEAD
WAITING_DEAD  DELIVERED     DELIVER_DEAD  HOLDING_DEAD
WAITING_DEAD  REFUSED       REFUSE        IDLE
WAITING_DEAD  DISCONNECT    WITHDRAW      CLOSED
HOLDING       RECEIVE       IGNORE        HOLDING
HOLDING       DEAD_RECEIVE  IGNORE        HOLDING
HOLDING       CONFIRM       SETTLE        IDLE
HOLDING       DELIVERED     PUT_BACK      HOLDING
HOLDING       REFUSED       IGNORE        HOLDING
HOLDING       DISCONNECT    RETURN        CLOSED
HOLDING_DEAD  RECEIVE       IGNORE        HOLDING_DEAD
HOLDING_DEAD  DEAD_RECEIVE  IGNORE        HOLDING_DEAD
HOLDING_DEAD  CONFIRM       SETTLE_DEAD   IDLE
HOLDING_DEAD  DELIVERED     PUT_BACK      HOLDING_DEAD
HOLDING_DEAD  REFUSED       IGNORE        HOLDING_DEAD
HOLDING_DEAD  DISCONNECT    RETURN_DEAD   CLOSED
CLOSED        RECEIVE       IGNORE        CLOSED
CLOSED        DEAD_RECEIVE  IGNORE        CLOSED
CLOSED        CONFIRM       IGNORE        CLOSED
CLOSED        DELIVERED     PUT_BACK      CLOSED
CLOSED        REFUSED       IGNORE        CLOSED
CLOSED        DISCONNECT    IGNORE        CLOSED
"""
ROWS = [line.split() for line in EXPECTED.split("\n") if line]
WAYS = {
    State.IDLE: [],
    State.WAITING: [Event.RECEIVE],
    State.WAITING_DEAD: [Event.DEAD_RECEIVE],
    State.HOLDING: [Event.RECEIVE, Event.DELIVERED],
    State.HOLDING_DEAD: [Event.DEAD_RECEIVE, Event.DELIVERED],
    State.CLOSED: [Event.DISCONNECT],
}


@pytest.mark.parametrize(("state", "event", "action", "after"), ROWS)
def test_every_event_in_every_state(state: str, event: str, action: str, after: str) -> None:
    slot = Slot()
    for way in WAYS[State[state]]:
        slot.on(way)
    assert slot.state is State[state]
    assert slot.on(Event[event]) is Action[action]
    assert slot.state is State[after]


def test_the_table_says_nothing_beyond_these_rows() -> None:
    assert {(state, event) for state, event, _, _ in ROWS} == {(s.name, e.name) for s in State for e in Event}
    written = {(s.name, e.name, a.name, n.name) for s, row in TABLE.items() for e, (a, n) in row.items()}
    assert written <= {(state, event, action, after) for state, event, action, after in ROWS}


def test_a_client_receives_confirms_and_receives_again() -> None:
    slot = Slot()
    events = [Event.RECEIVE, Event.DELIVERED, Event.CONFIRM, Event.RECEIVE, Event.DELIVERED, Event.DISCONNECT]
    assert [slot.on(event) for event in events] == [
        Action.WAIT,
        Action.DELIVER,
        Action.SETTLE,
        Action.WAIT,
        Action.DELIVER,
        Action.RETURN,
    ]


def test_only_the_packets_of_the_slot_are_events() -> None:
    assert PACKET_EVENTS == {
        codec.RECEIVE: Event.RECEIVE,
        codec.DEAD_RECEIVE: Event.DEAD_RECEIVE,
        codec.CONFIRM: Event.CONFIRM,
    }


@given(st.lists(st.sampled_from(list(Event))))
def test_in_any_order_of_events_every_delivered_message_is_settled_or_returned(events: list[Event]) -> None:
    slot = Slot()
    actions = [slot.on(event) for event in [*events, Event.DISCONNECT]]
    given_out = sum(event is Event.DELIVERED for event in events)
    ends = {Action.SETTLE, Action.SETTLE_DEAD, Action.RETURN, Action.RETURN_DEAD, Action.PUT_BACK}
    assert sum(action in ends for action in actions) == given_out


@pytest.mark.parametrize(("retries", "deliveries"), [(0, 1), (1, 2), (3, 4), (254, 255), (255, None)])
def test_retries_allow_one_delivery_more(retries: int, deliveries: int | None) -> None:
    assert deliveries_allowed(retries) == deliveries


@given(st.integers(0, 254))
def test_the_counter_runs_down_to_zero_over_the_deliveries_allowed(retries: int) -> None:
    allowed = deliveries_allowed(retries)
    assert allowed is not None
    counters = [remaining(allowed, attempts) for attempts in range(1, allowed + 1)]
    assert counters == list(range(retries, -1, -1))


@pytest.mark.parametrize(
    ("max_attempts", "attempts", "counter"), [(None, 1, 255), (None, 10**6, 255), (1000, 1, 254), (3, 5, 0)]
)
def test_the_counter_stays_a_byte(max_attempts: int | None, attempts: int, counter: int) -> None:
    assert remaining(max_attempts, attempts) == counter
