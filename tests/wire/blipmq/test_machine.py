"""The conversation's table: every state with every frame type."""

import pytest

from wire.blipmq import codec
from wire.blipmq.codec import FrameType, Reject
from wire.blipmq.machine import TABLE, Action, Conversation, IllegalTransition, State, Success

EXPECTED = """
            AWAITING_HELLO               AWAITING_AUTH                READY
HELLO       NEGOTIATE                    400 HELLO already performed  400 HELLO already performed
AUTH        400 HELLO not performed      AUTHENTICATE                 400 already authenticated
PUBLISH     401 unauthenticated          401 unauthenticated          PUBLISH
SUBSCRIBE   401 unauthenticated          401 unauthenticated          SUBSCRIBE
ACK         401 unauthenticated          401 unauthenticated          SETTLE
NACK        401 unauthenticated          401 unauthenticated          IGNORE
PING        401 unauthenticated          401 unauthenticated          PONG
PONG        401 unauthenticated          401 unauthenticated          IGNORE
POLL        401 unauthenticated          401 unauthenticated          POLL
"""
COLUMNS = {
    State.AWAITING_HELLO: slice(12, 41),
    State.AWAITING_AUTH: slice(41, 70),
    State.READY: slice(70, 110),
}
ROWS = [
    (state, FrameType[line[:12].strip()], line[columns].strip())
    for line in EXPECTED.strip("\n").splitlines()[1:]
    for state, columns in COLUMNS.items()
]


def conversation(state: State) -> Conversation:
    it = Conversation()
    if state is not State.AWAITING_HELLO:
        it.succeeded(Success.HELLO_ACCEPTED)
    if state is State.READY:
        it.succeeded(Success.AUTHENTICATED)
    return it


def shown(outcome: Action | Reject) -> str:
    return outcome.name if isinstance(outcome, Action) else f"{outcome.code} {outcome.message}"


@pytest.mark.parametrize(("state", "frame_type", "outcome"), ROWS)
def test_every_frame_in_every_state(state: State, frame_type: FrameType, outcome: str) -> None:
    it = conversation(state)
    assert shown(it.on(frame_type)) == outcome
    assert it.state is state


def test_the_table_has_these_rows_and_no_others() -> None:
    rows = {(state, kind) for state, kinds in TABLE.items() for kind in kinds}
    assert rows == {(state, int(frame_type)) for state, frame_type, _ in ROWS}


def test_a_client_says_hello_then_authenticates_then_works() -> None:
    it = Conversation()
    assert it.on(codec.HELLO) is Action.NEGOTIATE
    it.succeeded(Success.HELLO_ACCEPTED)
    assert it.on(codec.AUTH) is Action.AUTHENTICATE
    it.succeeded(Success.AUTHENTICATED)
    assert it.on(codec.PUBLISH) is Action.PUBLISH


def test_a_wrong_version_or_key_may_be_retried() -> None:
    it = Conversation()
    assert it.on(codec.HELLO) is Action.NEGOTIATE
    assert it.on(codec.HELLO) is Action.NEGOTIATE
    it.succeeded(Success.HELLO_ACCEPTED)
    assert it.on(codec.AUTH) is Action.AUTHENTICATE
    assert it.on(codec.AUTH) is Action.AUTHENTICATE


@pytest.mark.parametrize("state", [State.AWAITING_AUTH, State.READY])
def test_hello_cannot_be_accepted_twice(state: State) -> None:
    it = conversation(state)
    with pytest.raises(IllegalTransition, match=f"^HELLO_ACCEPTED in {state.name}$"):
        it.succeeded(Success.HELLO_ACCEPTED)
    assert it.state is state


@pytest.mark.parametrize("state", [State.AWAITING_HELLO, State.READY])
def test_a_client_is_not_authenticated_out_of_turn(state: State) -> None:
    it = conversation(state)
    with pytest.raises(IllegalTransition, match=f"^AUTHENTICATED in {state.name}$"):
        it.succeeded(Success.AUTHENTICATED)
    assert it.state is state
