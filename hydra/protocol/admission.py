"""Which links are accepted (docs/protocols/hydra.md, "Rejected links"). No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

MAX_ORIGINS: Final = 1024


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Which addresses may connect, and how often."""

    allow: Sequence[IPv4Network | IPv6Network] = ()
    """The networks that may connect; empty: all."""
    disconnects: int = 60
    """Ended links of one origin within `window`, from which on the origin is refused."""
    window: float = 60.0
    """Seconds."""
    links: int = 256
    """Links accepted at a time."""


class Admission:
    """Accepts or refuses links by their origin: an IP address, or the transport's name of the other side."""

    def __init__(self, rules: AdmissionRules) -> None:
        self._rules = rules
        self._ended: dict[str, deque[float]] = {}

    def refusal(self, origin: str, links: int, now: float) -> str | None:
        """The reason to refuse a link, or None: it is accepted. `links` is the number of open links."""
        if not self._allowed(origin):
            return f"{origin} is not in an allowed network"
        if links >= self._rules.links:
            return f"{links} links are open already"
        ended = self._recent(origin, now)
        if len(ended) >= self._rules.disconnects:
            return f"{origin} has disconnected {len(ended)} times in {self._rules.window:g} s"
        return None

    def _allowed(self, origin: str) -> bool:
        if not self._rules.allow:
            return True
        try:
            address = ip_address(origin)
        except ValueError:
            # The file system decides which processes open a named pipe.
            return origin.startswith("fifo://")
        return any(address in network for network in self._rules.allow)

    def ended(self, origin: str, now: float) -> None:
        """Count the end of an accepted link of this origin."""
        ended = self._recent(origin, now)
        ended.append(now)
        self._ended.pop(origin, None)
        self._ended[origin] = ended
        if len(self._ended) > MAX_ORIGINS:
            del self._ended[next(iter(self._ended))]

    def _recent(self, origin: str, now: float) -> deque[float]:
        ended = self._ended.get(origin)
        if ended is None:
            return deque(maxlen=self._rules.disconnects)
        while ended and ended[0] <= now - self._rules.window:
            ended.popleft()
        return ended
