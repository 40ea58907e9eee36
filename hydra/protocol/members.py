"""The record that a node keeps of all other nodes (docs/protocols/hydra.md, "Membership"). No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hydra.protocol.electorate import Electorate

MAX_MEMBERS: Final = 1024
MAX_DROPPED: Final = 4096


class Member:
    """Another node, and the closest neighbour to it."""

    __slots__ = ("heard", "hops", "id", "irc", "link", "name", "voter")

    def __init__(self, id: int, voter: str | None, now: float) -> None:
        self.id = id
        self.voter = voter
        """Its lasting key; None for a node that does not know attributes, and has no vote."""
        self.irc = False
        """Whether it has said that it could be on IRC."""
        self.name = ""
        """Its friendly name, if it has told one."""
        self.heard = now
        """When it answered the last heartbeat, or was registered."""
        self.link: int | None = None
        """The link that the shortest way to it begins with."""
        self.hops = 0

    def __deepcopy__(self, memo: object) -> Member:
        copy = Member(self.id, self.voter, self.heard)
        copy.irc, copy.name, copy.link, copy.hops = self.irc, self.name, self.link, self.hops
        return copy

    @property
    def identity(self) -> str:
        """What its votes count under: they count once, whatever id it has."""
        return self.voter or f"#{self.id}"

    def route(self, link: int, hops: int, *, fresh: bool) -> None:
        """An answer of it came over a link, after so many hops; the first of its kind, or by another way."""
        if fresh or hops < self.hops:
            self.link = link
            self.hops = hops


class Members:
    """All other nodes by their ids. A dropped id stays out for a while, so that late messages do not bring it back."""

    __slots__ = ("_by_id", "_by_voter", "_dropped", "_memory", "own_id", "own_voter", "plain")

    def __init__(self, own_id: int, own_voter: str, memory: float) -> None:
        self.own_id = own_id
        self.own_voter = own_voter
        self._memory = memory
        self._by_id: dict[int, Member] = {}
        self._by_voter: dict[str, int] = {}
        self._dropped: dict[int, float] = {}
        self.plain = Electorate(0, 0, frozenset({own_voter}))
        """All nodes, as they were when there was a leader: who votes where nobody agrees on electorates."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, id: int) -> bool:
        return id in self._by_id

    def get(self, id: int | None) -> Member | None:
        """The node with this id, if it is registered."""
        return None if id is None else self._by_id.get(id)

    def of_voter(self, voter: str) -> Member | None:
        """The node with this lasting key, if it is registered."""
        return self.get(self._by_voter.get(voter))

    def is_dropped(self, id: int, now: float) -> bool:
        """Whether this id was dropped lately."""
        return self._dropped.get(id, -1.0) > now

    def register(self, id: int, voter: str | None, now: float) -> Member | None:
        """Take a node into the record, and return it; None if it cannot be: dropped, another's id, or no room.

        A voter that comes with another id has left the one it had.
        """
        member = self._by_id.get(id)
        if id == self.own_id or voter == self.own_voter:
            return None
        if member is not None:
            return self._bind(member, voter, now)
        if self.is_dropped(id, now) or len(self._by_id) >= MAX_MEMBERS:
            return None
        member = self._by_id[id] = Member(id, None, now)
        bound = self._bind(member, voter, now)
        if len(self.plain.voters) < MAX_DROPPED:
            self.plain = self.plain._replace(voters=self.plain.voters | {member.identity})
        return bound

    def _bind(self, member: Member, voter: str | None, now: float) -> Member | None:
        if voter is None or voter == member.voter:
            return member
        if member.voter is not None:
            return None
        if (former := self.of_voter(voter)) is not None:
            self.drop(former.id, now)
        member.voter = voter
        self._by_voter[voter] = member.id
        return member

    def welcome(self, id: int, voter: str | None, now: float) -> Member | None:
        """Take a node into the record that was inducted just now, also if it had this id before it was dropped."""
        self.forgive(id)
        return self.register(id, voter, now)

    def drop(self, id: int, now: float, *, shrink: bool = False) -> None:
        """Remove a node. With `shrink` it has no vote any more either, where nobody agrees on electorates."""
        self._remember(id, now)
        member = self._by_id.pop(id, None)
        if member is None:
            return
        if member.voter is not None:
            del self._by_voter[member.voter]
        if shrink:
            self.plain = self.plain._replace(voters=self.plain.voters - {member.identity})

    def forget(self, id: int) -> None:
        """Remove a node that is silent; heard from again, it is a node again."""
        member = self._by_id.pop(id)
        if member.voter is not None:
            del self._by_voter[member.voter]
        self.plain = self.plain._replace(voters=self.plain.voters - {member.identity})

    def forgive(self, id: int) -> None:
        """That an id was dropped means nothing any more."""
        self._dropped.pop(id, None)

    def _remember(self, id: int, now: float) -> None:
        self._dropped.pop(id, None)
        self._dropped[id] = now + self._memory
        if len(self._dropped) > MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]

    def forget_link(self, link: int) -> None:
        """A link is gone, and with it the ways that begin there."""
        for member in self._by_id.values():
            if member.link == link:
                member.link = None

    def restart(self, own_id: int, now: float) -> None:
        """Forget all nodes: this one has another id now, and must not take its former one for a stranger's."""
        self._remember(self.own_id, now)
        self.own_id = own_id
        self._by_id.clear()
        self._by_voter.clear()
        self.plain = Electorate(0, 0, frozenset({self.own_voter}))
