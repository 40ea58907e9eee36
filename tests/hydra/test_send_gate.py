"""When a line for IRC may be taken from its queue."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hydra.irc.pace import Pace
from hydra.protocol.irclease import State
from hydra.protocol.node import Node
from hydra.protocol.roles import Role
from hydra.send_gate import SendGate

UNHURRIED = Pace(1, 0)


def node(role: Role, irc: State = State.OFF) -> Node:
    """A node as far as a gate looks at it."""
    return cast(Node, SimpleNamespace(role=role, bridge=SimpleNamespace(irc=SimpleNamespace(state=irc))))


def gate(role: Role | None, irc: State = State.OFF, *, room: bool | None = True, elsewhere: bool = False) -> SendGate:
    made = SendGate(None if room is None else SimpleNamespace(has_room=room), UNHURRIED)
    made.node = None if role is None else node(role, irc)
    made.leader_elsewhere = elsewhere
    return made


async def test_the_leader_takes_lines_when_it_is_on_irc_and_there_is_room() -> None:
    assert gate(Role.LEADING, State.ON).is_open()
    assert not gate(Role.LEADING, State.CONNECTING).is_open()
    assert not gate(Role.LEADING, State.OFF).is_open()
    assert not gate(Role.LEADING, State.ON, room=False).is_open()
    assert not gate(Role.LEADING, State.ON, room=None).is_open()


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.LEADING])
async def test_of_followers_only_those_with_another_database_than_the_leader_take_lines(role: Role) -> None:
    assert not gate(role, State.ON).is_open()
    assert gate(role, elsewhere=True).is_open() == (role is Role.FOLLOWING)


async def test_a_leader_does_not_care_where_the_last_one_had_its_database() -> None:
    assert not gate(Role.LEADING, State.OFF, elsewhere=True).is_open()


async def test_there_is_no_gate_without_a_node() -> None:
    assert not gate(None).is_open()


async def test_a_follower_takes_no_more_than_irc_would() -> None:
    paced = SendGate(None, Pace(2, 60.0))
    paced.node, paced.leader_elsewhere = node(Role.FOLLOWING), True
    taken = 0
    while paced.is_open():
        paced.spend()
        taken += 1
    assert taken == 2


async def test_waiters_are_woken_when_the_gate_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydra.send_gate.LOOK", 60.0)
    closed = gate(Role.LEADING, State.CONNECTING)
    waiting = asyncio.create_task(closed.wait())
    await asyncio.sleep(0)
    closed.changed()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    closed.node = node(Role.LEADING, State.ON)
    closed.changed()
    async with asyncio.timeout(5):
        await waiting


async def test_room_that_comes_by_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydra.send_gate.LOOK", 0.01)
    room: Any = SimpleNamespace(has_room=False)
    closed = SendGate(room, UNHURRIED)
    closed.node = node(Role.LEADING, State.ON)
    asyncio.get_running_loop().call_later(0.02, setattr, room, "has_room", True)
    async with asyncio.timeout(5):
        await closed.wait()
    assert closed.is_open()
