"""A node's links: dialled, accepted or refused, given up when no induction follows (docs/protocols/hydra.md, "Links").

No I/O. The node tells it which links open and close; it closes those that carry no messages, and dials every target
that is not connected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hydra.protocol.admission import Admission, AdmissionRules
from hydra.protocol.codec import may_begin
from hydra.protocol.core import Core
from hydra.protocol.effects import CloseLink, Dial
from hydra.protocol.induction import Induction
from hydra.protocol.links import NodeLink, State
from hydra.protocol.roles import Role

#: Characters of a rejected first line in a log.
SHOWN: Final = 40
#: Meaningless lines that a link may carry before its handshake is complete.
MAX_IGNORED: Final = 100


class Neighbours:
    """The links of one node."""

    def __init__(self, core: Core, induction: Induction, rules: AdmissionRules, targets: Iterable[str]) -> None:
        """`targets` are the addresses to dial."""
        self._core = core
        self._induction = induction
        self._admission = Admission(rules)
        self._dial_at = dict.fromkeys(targets, core.now)

    def deadlines(self) -> list[float]:
        """When each link that has not joined, and each target that is not connected, needs `keep`."""
        core = self._core
        connected = core.links.targets()
        times = [at for target, at in self._dial_at.items() if target not in connected]
        for link in core.links:
            if link.state is State.KNOCKING:
                times.append(min(link.knock_at, link.opened + core.times.handshake))
            elif link.state is not State.JOINED:
                times.append(link.opened + core.times.handshake)
        return times

    # Opening and closing.

    def open(self, number: int, target: str | None, origin: str) -> None:
        """Take an open link: knock on a dialled one, refuse an accepted one that the rules forbid."""
        core = self._core
        if target is None and (refusal := self._admission.refusal(origin, len(core.links), core.now)) is not None:
            core.outbox.at_once(CloseLink(number, refusal))
            return
        link = NodeLink(number, core.now, target=target, origin=origin)
        core.links.add(link)
        if target is not None:
            if core.role is Role.OUTSIDE and not core.links.joined and len(core.links) == 1:
                core.draw_id()
            self._induction.knock(link)

    def lost(self, number: int) -> None:
        """Forget a link that the other side or the network has closed."""
        link = self._core.links.remove(number)
        if link is not None:
            self._core.closed.append(link)

    def close_all(self, reason: str) -> None:
        """Close every link."""
        for link in self._core.links:
            self._core.close(link, reason)

    def keep(self) -> None:
        """Close links without an induction in time, knock again, and dial the targets that are due."""
        core = self._core
        self.settle_closed()
        for link in core.links:
            if link.state is State.JOINED:
                continue
            if core.now >= link.opened + core.times.handshake:
                core.close(link, "no induction in time")
            elif link.state is State.KNOCKING and core.now >= link.knock_at:
                self._induction.knock(link)
        connected = core.links.targets()
        for target, at in self._dial_at.items():
            if target not in connected and core.now >= at:
                self._dial_at[target] = core.now + core.times.redial * core.rng.uniform(0.5, 1.5)
                core.outbox.at_once(Dial(target))

    def settle_closed(self) -> None:
        """Remove the links closed in this event from all records."""
        core = self._core
        while core.closed:
            link = core.closed.pop()
            core.members.forget_link(link.number)
            self._induction.forget_link(link.number)
            if link.target is None:
                self._admission.ended(link.origin, core.now)
            else:
                self._dial_at[link.target] = core.now + core.times.redial * core.rng.uniform(0.1, 0.5)

    # Links that carry no messages.

    def check_rest(self, link: NodeLink) -> None:
        """Close a link that carries no lines, or whose incomplete first line cannot become a message."""
        decoder = link.decoder
        if link.state is State.CLOSED:
            return
        if decoder.error is not None:
            self._core.close(link, decoder.error)
        elif not link.begun and decoder.pending and not may_begin(decoder.pending):
            self._refuse(link, decoder.pending.decode(errors="replace"))

    def ignore(self, link: NodeLink, line: str) -> None:
        """Skip a meaningless line; as a link's first line it closes the link."""
        if not link.begun:
            self._refuse(link, line)
        else:
            self.count_ignored(link)

    def count_ignored(self, link: NodeLink) -> None:
        """Count an ignored line or message; too many before the handshake is complete close the link."""
        if link.count_ignored() > MAX_IGNORED and link.state is not State.JOINED:
            self._core.close(link, f"more than {MAX_IGNORED} meaningless lines")

    def _refuse(self, link: NodeLink, text: str) -> None:
        """Close a link of another protocol (a browser, a scanner, a TLS client); its further lines are not read."""
        self._core.close(link, f"its first line is no message of Hydra's: {text[:SHOWN]!a}")
