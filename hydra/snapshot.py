"""Snapshots of a node, and the occurrences between two of them. No I/O.

Moments are seconds of the node's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from hydra.protocol.codec import split_tag
from hydra.protocol.electorate import parse_electorate
from hydra.protocol.node import Node
from hydra.protocol.roles import Role

#: The greatest number of hops in a table; neighbours may claim any.
FARTHEST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """A link: a dialled one has a target, an accepted one an origin."""

    number: int
    target: str
    origin: str
    peer: int | None
    """The neighbour's id, once it is known."""
    peer_tag: str
    """The neighbour's friendly name, or nothing."""
    state: str
    """`hydra.protocol.links.State` in lower case."""
    extended: bool
    """Whether the neighbour knows attributes."""
    opened: float


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Another node."""

    id: int
    voter: str
    """Its lasting key; empty if it knows no attributes."""
    tag: str
    """Its friendly name, or nothing."""
    hops: int
    """Its distance in links; 0: unknown."""
    via: int | None
    """The first link of the way to it."""
    answered: float | None
    """Its last answer; None unless this node leads: only the leader drops nodes for silence."""
    voting: bool

    def __str__(self) -> str:
        return f"{self.tag} ({self.id})" if self.tag else str(self.id)


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node at one moment."""

    now: float
    name: str
    id: int
    voter: str
    role: str
    """`hydra.protocol.roles.Role` in lower case."""
    term: int
    leader: int | None
    leader_name: str
    lease_until: float | None
    """None unless it leads."""
    irc: str
    """`hydra.protocol.irclease.State` in lower case."""
    electorate: str
    """The electorate's text; empty if none is known."""
    links: tuple[LinkStatus, ...]
    members: tuple[MemberStatus, ...]
    faults: int = 0
    """Units of work given up by its process for unforeseen reasons."""
    lines_refused: int = 0
    lines_lost: int = 0
    """Lines that its process gave to IRC, or was to store, and that came to no good end."""

    @property
    def standing(self) -> tuple[str, int, int | None, str]:
        """The fields whose changes are shown at once."""
        return self.role, self.term, self.leader, self.irc


def snapshot(
    node: Node, now: float, faults: int = 0, lines_refused: int = 0, lines_lost: int = 0
) -> NodeSnapshot:  # fmt: skip
    """Take a node's snapshot; `now` is its clock's time, faults and lines are those of its process."""
    core, leader_term = node.core, node.heartbeat.leader_term
    leader = node.members.get(node.leader)
    return NodeSnapshot(
        now=now,
        name=core.name,
        id=node.id,
        voter=core.voter,
        role=node.role.name.lower(),
        term=node.term,
        leader=node.leader,
        leader_name=core.name if node.leader == node.id else "" if leader is None else _friendly(leader.name),
        lease_until=None if leader_term is None else leader_term.lease_until,
        irc=node.bridge.irc.state.name.lower(),
        electorate="" if node.electorate is None else str(node.electorate),
        links=tuple(_links(node)),
        members=tuple(_members(node)),
        faults=faults,
        lines_refused=lines_refused,
        lines_lost=lines_lost,
    )


def _links(node: Node) -> Iterator[LinkStatus]:
    for link in node.core.links:
        peer = node.members.get(link.peer)
        yield LinkStatus(
            number=link.number,
            target=link.target or "",
            origin=link.origin if link.target is None else "",
            peer=link.peer,
            peer_tag="" if peer is None else _friendly(peer.name),
            state=link.state.name.lower(),
            extended=link.extended,
            opened=link.opened,
        )


def _members(node: Node) -> Iterator[MemberStatus]:
    voters = node.core.base.voters
    leading = node.role is Role.LEADING
    for member in node.members:
        yield MemberStatus(
            id=member.id,
            voter=member.voter or "",
            tag=_friendly(member.name),
            hops=min(member.hops, FARTHEST),
            via=member.link,
            answered=member.heard if leading else None,
            voting=member.identity in voters,
        )


def _friendly(tag: str) -> str:
    return split_tag(tag)[0]


class Occurrence(NamedTuple):
    """An event for operators."""

    kind: str
    """One or two words, such as "role" or "link closed"."""
    term: int
    text: str


def occurrences(before: NodeSnapshot | None, after: NodeSnapshot) -> list[Occurrence]:
    """The occurrences between two snapshots: roles, leaders, members and the electorate.

    Links and IRC are not included: their events carry reasons.
    """
    found: list[tuple[str, str]] = []
    if before is None or (before.role, before.term, before.leader) != (after.role, after.term, after.leader):
        found.append(("role", _role(after)))
    if before is not None and before.id != after.id:
        found.append(("id", f"{after.id} from now on, {before.id} before"))
    found += _comings_and_goings(before, after)
    if (before.electorate if before is not None else "") != after.electorate:
        found.append(("electorate", _electorate(before, after)))
    return [Occurrence(kind, after.term, text) for kind, text in found]


def _role(node: NodeSnapshot) -> str:
    if node.role == "leading":
        return f"leads term {node.term}"
    if node.role == "following":
        return f"follows {node.leader_name or node.leader} in term {node.term}"
    if node.role == "outside":
        return "is outside the network"
    if node.role == "waiting":
        return f"waits in term {node.term}: there is no leader"
    return f"stands for election in term {node.term}" + (", calls for the votes" if node.role == "calling" else "")


def _comings_and_goings(before: NodeSnapshot | None, after: NodeSnapshot) -> Iterator[tuple[str, str]]:
    known = {} if before is None else {member.id: member for member in before.members}
    here = {member.id: member for member in after.members}
    yield from (("joined", f"{here[id]} is a node of the network") for id in here if id not in known)
    yield from (("left", f"{known[id]} is no node of the network any more") for id in known if id not in here)


def _electorate(before: NodeSnapshot | None, after: NodeSnapshot) -> str:
    if not after.electorate:
        return "no electorate is agreed"
    electorate = parse_electorate(after.electorate)
    names = {after.voter: after.name} | {one.voter: one.tag or one.voter for one in after.members}
    for one in () if before is None else before.members:
        names.setdefault(one.voter, one.tag or one.voter)
    voters = ", ".join(sorted(names.get(voter, voter) for voter in electorate.voters))
    return f"{electorate.term}.{electorate.version}: {voters}"
