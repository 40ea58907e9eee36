"""The sessions of a process by the API key that opened them: how many a key may have, and which end with it."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

Session = TypeVar("Session")

#: The quota's name in the count of those that were met.
CONNECTIONS = "connections"


class KeySessions(Generic[Session]):
    """The sessions of each API key, up to a limit."""

    def __init__(self, over: Counter[str]) -> None:
        """`over` counts how often each quota was met."""
        self._over = over
        self._by_key: dict[int, set[Session]] = {}

    def admit(self, key: int, session: Session, most: int) -> bool:
        """Remember which key opened a session; False, and nothing is remembered, when it has `most` already."""
        sessions = self._by_key.setdefault(key, set())
        if len(sessions) >= most:
            self._over[CONNECTIONS] += 1
            return False
        sessions.add(session)
        return True

    def forget(self, key: int, session: Session) -> None:
        """The session has ended."""
        sessions = self._by_key.get(key, set())
        sessions.discard(session)
        if not sessions:
            self._by_key.pop(key, None)

    def of(self, key: int) -> tuple[Session, ...]:
        """The sessions of a key."""
        return tuple(self._by_key.get(key, ()))
