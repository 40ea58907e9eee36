"""The tables of roles, links and the IRC connection: every cell, and what is in none."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from hydra.protocol import irclease, links, roles
from hydra.protocol.irclease import IrcLease
from hydra.protocol.links import NodeLink
from hydra.protocol.roles import Action, Candidacy, Event, Role


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("role", Role)
def test_a_role_changes_as_the_table_says_and_not_otherwise(role: Role, event: Event) -> None:
    candidacy = Candidacy()
    candidacy.role = role
    actions = candidacy.on(event)
    expected = roles.TABLE[role].get(event)
    assert (actions, candidacy.role) == (expected if expected is not None else ((), role))


def leaving(role: Role) -> list[tuple[Action, ...]]:
    return [actions for actions, after in roles.TABLE[role].values() if after is not role]


def test_a_leader_resigns_before_anything_else() -> None:
    assert leaving(Role.LEADING)
    assert all(actions[0] is Action.RESIGN for actions in leaving(Role.LEADING))


def test_only_votes_make_a_leader() -> None:
    ways = [(role, event) for role, row in roles.TABLE.items() for event, (_, to) in row.items() if to is Role.LEADING]
    assert set(ways) == {(Role.NOMINEE, Event.VOTES_IN), (Role.CALLING, Event.VOTES_IN)}


def test_a_dropped_node_rejoins_from_any_role() -> None:
    assert all(Action.REJOIN in row[Event.DROPPED][0] for row in roles.TABLE.values())


@pytest.mark.parametrize("event", links.Event)
@pytest.mark.parametrize("state", links.State)
def test_a_link_changes_as_the_table_says_and_not_otherwise(state: links.State, event: links.Event) -> None:
    link = NodeLink(1, 0.0, target=None, origin="x")
    link.state = state
    action = link.on(event)
    assert (action, link.state) == links.TABLE[state].get(event, (links.Action.IGNORE, state))


@pytest.mark.parametrize("event", irclease.Event)
@pytest.mark.parametrize("state", irclease.State)
def test_the_irc_connection_changes_as_the_table_says_and_not_otherwise(
    state: irclease.State, event: irclease.Event
) -> None:
    lease = IrcLease()
    lease.state = state
    action = lease.on(event)
    assert (action, lease.state) == irclease.TABLE[state].get(event, (irclease.Action.NOTHING, state))


def reachable(table: Any, first: Enum) -> set[Enum]:
    found, todo = {first}, [first]
    while todo:
        for _, to in table[todo.pop()].values():
            if to not in found:
                found.add(to)
                todo.append(to)
    return found


def test_every_state_can_be_reached_and_every_event_means_something() -> None:
    assert reachable(roles.TABLE, Role.OUTSIDE) == set(Role)
    assert reachable(links.TABLE, links.State.SILENT) | {links.State.KNOCKING} == set(links.State)
    assert reachable(irclease.TABLE, irclease.State.OFF) == set(irclease.State)
    for table, events in ((roles.TABLE, Event), (links.TABLE, links.Event), (irclease.TABLE, irclease.Event)):
        assert {event for row in table.values() for event in row} == set(events)


def test_the_irc_connection_ends_at_once_from_wherever_it_is() -> None:
    for state in (irclease.State.CONNECTING, irclease.State.ON):
        assert irclease.TABLE[state][irclease.Event.ENDED] == (irclease.Action.LEAVE, irclease.State.OFF)
