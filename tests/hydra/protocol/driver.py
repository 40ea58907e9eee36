"""A node with a disk and an IRC connection that answer at once, and links that are lists of lines."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

from hydra.protocol.codec import encode
from hydra.protocol.effects import (
    CloseLink,
    ConnectIrc,
    DeliverLine,
    Dial,
    Effect,
    LeaveIrc,
    Persist,
    Say,
    StoredNode,
    Transmit,
)
from hydra.protocol.electorate import Electorate
from hydra.protocol.messages import Ping
from hydra.protocol.node import Node
from hydra.protocol.times import Times

VOTER = "00000000000000aa"
OTHERS = ("00000000000000bb", "00000000000000cc", "00000000000000dd", "00000000000000ee")


class Driven:
    """Carries out a node's effects and notes them."""

    def __init__(self, stored: StoredNode | None = None, *, disk: bool = True, **options: Any) -> None:
        self.now = 100.0
        self.disk = disk
        """Whether writes are answered at once; else they wait for `answer_disk`."""
        self.sent: dict[int, list[str]] = defaultdict(list)
        self.log: list[Effect] = []
        self.closed: dict[int, str] = {}
        self.dialled: list[str] = []
        self.on_irc = False
        self.said: list[str] = []
        self.delivered: list[tuple[int, int, str]] = []
        self.writes: list[Persist] = []
        self.stored = stored or StoredNode(VOTER)
        given: dict[str, Any] = {"name": "alpha", "times": Times(), "rng": Random(7), **options}
        self.node = Node(stored=self.stored, now=self.now, **given)
        self._carry_out(self.node.start(self.now))

    @property
    def id(self) -> int:
        return self.node.id

    def connect(self, link: int, *, target: str | None = None, origin: str = "127.0.0.1") -> None:
        """A link is open."""
        self._carry_out(self.node.link_opened(self.now, link, target=target, origin=origin))

    def lose(self, link: int) -> None:
        self._carry_out(self.node.link_closed(self.now, link))

    def hear(self, link: int, *lines: str) -> list[str]:
        """Lines come over a link; return what is sent over it then."""
        return self.hear_bytes(link, "".join(f"{line}\r\n" for line in lines).encode())

    def hear_bytes(self, link: int, data: bytes) -> list[str]:
        self.sent[link].clear()
        self._carry_out(self.node.data_received(self.now, link, data))
        return list(self.sent[link])

    def call(self, name: str, *args: Any) -> None:
        """Some other event."""
        self._carry_out(getattr(self.node, name)(self.now, *args))

    def wait(self, seconds: float) -> None:
        """Time passes, and the node is called whenever it wants to be."""
        end = self.now + seconds
        while self.node.deadline <= end:
            self.now = max(self.now, self.node.deadline) + 1e-6
            self._carry_out(self.node.tick(self.now))
        self.now = max(self.now, end)

    def freeze(self, seconds: float) -> None:
        """Time passes, and the node notices nothing of it."""
        self.now += seconds

    def lead_on(self, beats: int) -> None:
        """So many heartbeats pass, and nodes 11 and 12 answer each."""
        for _ in range(beats):
            self.wait(2.5)
            answer(self)

    def clear(self) -> None:
        """Forget what was sent."""
        self.sent.clear()

    def answer_disk(self) -> None:
        """All writes are done."""
        while self.writes:
            write = self.writes.pop(0)
            self.stored = write.stored
            self._carry_out(self.node.persisted(self.now, write.number))

    def _carry_out(self, effects: list[Effect]) -> None:
        connects = False
        for effect in effects:
            self.log.append(effect)
            match effect:
                case Transmit():
                    line = encode(effect.message, attributes=effect.attributes).decode().removesuffix("\r\n")
                    for link in effect.links:
                        self.sent[link].append(line)
                case Persist():
                    self.writes.append(effect)
                case CloseLink():
                    self.closed[effect.link] = effect.reason
                case Dial():
                    self.dialled.append(effect.target)
                case ConnectIrc():
                    connects = True
                case LeaveIrc():
                    self.on_irc = connects = False
                case Say():
                    self.said.append(effect.line)
                case DeliverLine():
                    self.delivered.append((effect.term, effect.idx, effect.line))
                case _:
                    pass
        if self.disk:
            self.answer_disk()
        if connects:
            self.on_irc = True
            self._carry_out(self.node.irc_connected(self.now))


def electorate(*voters: str, term: int = 3, version: int = 5) -> Electorate:
    return Electorate(term, version, frozenset(voters))


def voter_of_three(**options: Any) -> Driven:
    """A node with a vote beside two others, in term 3, after the wait that follows a restart."""
    driven = Driven(StoredNode(VOTER, 3, None, electorate(VOTER, *OTHERS[:2])), **options)
    driven.node.core.promise_until = driven.now
    return driven


def neighbour(driven: Driven, link: int, id: int, voter: str) -> None:
    """A voter connects and is let in."""
    driven.connect(link, origin=f"10.0.0.{link}")
    driven.hear(link, f"KNOCK {id} n{id}@{voter}")
    assert id in driven.node.members
    driven.clear()


def leader_of_three(**options: Any) -> Driven:
    """The leader of term 4, with its lease, and nodes 11 and 12 on links 1 and 2."""
    driven = voter_of_three(**options)
    neighbour(driven, 1, 11, OTHERS[0])
    neighbour(driven, 2, 12, OTHERS[1])
    driven.wait(driven.node.election.ends - driven.now + 1e-3)
    for link, id, voter in ((1, 11, OTHERS[0]), (2, 12, OTHERS[1])):
        driven.hear(link, f"@voter={voter} PLEDGE 4 {driven.id} {id}")
        driven.hear(link, f"@voter={voter} ELECT 4 {driven.id} {id}")
    answer(driven)
    driven.clear()
    return driven


def last_val(driven: Driven) -> str:
    """The `val` of the last heartbeat that was sent."""
    sent = [effect.message for effect in driven.log if isinstance(effect, Transmit)]
    return [message for message in sent if isinstance(message, Ping)][-1].val


def answer(driven: Driven, *links: int) -> None:
    """Nodes 11 and 12, or those on some links only, answer the last heartbeat."""
    val = last_val(driven)
    electorate = driven.node.electorate
    assert electorate is not None
    for link in links or (1, 2):
        voter = OTHERS[link - 1]
        stamp = f"{electorate.term}.{electorate.version}"
        driven.hear(link, f"@voter={voter};stamp={stamp} PONG {val} {10 + link} 0 n{link}")
