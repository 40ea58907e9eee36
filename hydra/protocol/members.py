"""A node's record of all other nodes (docs/protocols/hydra.md, "Membership"). No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hydra.protocol.electorate import Electorate

MAX_MEMBERS: Final = 1024
MAX_DROPPED: Final = 4096


class Member:
    """Another node, and the neighbour closest to it."""

    def __init__(self, id: int, voter: str | None, now: float) -> None:
        self.id = id
        self.voter = voter
        """Its lasting key; None for a node that does not know attributes, and has no vote."""
        self.irc = False
        """Whether it knows an IRC server, by its own word."""
        self.name = ""
        """Its friendly name, if it has sent one."""
        self.heard = now
        """When it last answered a heartbeat, or was registered."""
        self.link: int | None = None
        """The first link of the shortest way to it."""
        self.hops = 0

    def __deepcopy__(self, memo: object) -> Member:
        copy = Member(self.id, self.voter, self.heard)
        copy.irc, copy.name, copy.link, copy.hops = self.irc, self.name, self.link, self.hops
        return copy

    @property
    def identity(self) -> str:
        """The identity that its votes count for, once for all its ids."""
        return self.voter or f"#{self.id}"

    def answered(self, now: float) -> None:
        """Note an answer to a heartbeat."""
        self.heard = now

    def introduce(self, name: str, *, irc: bool) -> None:
        """Note its friendly name, and whether it knows an IRC server."""
        self.name, self.irc = name, irc

    def route(self, link: int, hops: int, *, fresh: bool) -> None:
        """Its answer came over a link after so many hops; `fresh`: the answer's first copy."""
        if fresh or hops < self.hops:
            self.link = link
            self.hops = hops


class Members:
    """All other nodes by their ids. A dropped id is refused for a while, so that late messages do not bring it back."""

    def __init__(self, own_id: int, own_voter: str, memory: float) -> None:
        self.own_id = own_id
        self.own_voter = own_voter
        self._memory = memory
        self._by_id: dict[int, Member] = {}
        self._by_voter: dict[str, int] = {}
        self._dropped: dict[int, float] = {}
        self.plain = Electorate(0, 0, frozenset({own_voter}))
        """All nodes known while there was a leader: the voters where no electorate is agreed."""

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
        """Whether this id was dropped recently."""
        return self._dropped.get(id, -1.0) > now

    def register(self, id: int, voter: str | None, now: float) -> Member | None:
        """Record a node and return it; None if it was dropped, has another node's id, or there is no room.

        A voter with a new id has left its former one.
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
        """Record a node after its induction, also under an id that was dropped before."""
        self.forgive(id)
        return self.register(id, voter, now)

    def drop(self, id: int, now: float, *, shrink: bool = False) -> None:
        """Remove a node. With `shrink` it also loses its vote where no electorate is agreed."""
        self._remember(id, now)
        self.forget(id, shrink=shrink)

    def forget(self, id: int, *, shrink: bool = True) -> None:
        """Remove a silent node; its next message registers it again."""
        member = self._by_id.pop(id, None)
        if member is None:
            return
        if member.voter is not None:
            del self._by_voter[member.voter]
        if shrink:
            self.plain = self.plain._replace(voters=self.plain.voters - {member.identity})

    def forgive(self, id: int) -> None:
        """Accept an id again that was dropped."""
        self._dropped.pop(id, None)

    def _remember(self, id: int, now: float) -> None:
        self._dropped.pop(id, None)
        self._dropped[id] = now + self._memory
        if len(self._dropped) > MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]

    def forget_link(self, link: int) -> None:
        """Forget the ways that begin with a closed link."""
        for member in self._by_id.values():
            if member.link == link:
                member.link = None

    def restart(self, own_id: int, now: float) -> None:
        """Forget all nodes under a new id of this one; its former id counts as dropped."""
        self._remember(self.own_id, now)
        self.own_id = own_id
        self._by_id.clear()
        self._by_voter.clear()
        self.plain = Electorate(0, 0, frozenset({self.own_voter}))
