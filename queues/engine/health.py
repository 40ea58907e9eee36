"""Troubles of an engine, for /readyz, /metrics and the log, and counts of work that was set aside so that the rest
could go on."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Self

import psycopg

from queues.engine.clock import now
from queues.log_throttle import FAULTS, LogThrottle

logger = logging.getLogger(__name__)

#: So many new starts within so many seconds make a process unready.
MANY_RESTARTS = 3
RESTARTS_WITHIN = 60.0


class Trouble(str):
    """A trouble, as /readyz says it. `kind` is its label in the metrics."""

    __slots__ = ("kind",)

    def __new__(cls, text: str, kind: str) -> Self:
        return super().__new__(cls, text)

    def __init__(self, text: str, kind: str) -> None:
        self.kind = kind


#: Kinds of trouble: a connection is lost, the engine started anew too often, the database is silent, commits take too
#: long or are refused (publishes, acknowledgements, claims, peers' letters), an audit chain or the journal is broken, a
#: job of the engine fails, the database came back with another past, a primary that was replaced takes writes.
KINDS = (
    "reconnecting", "restarts", "silence", "publishes", "acknowledgements", "claims", "peers", "chain", "journal",
    "job", "history", "replaced",
)  # fmt: skip

#: Names of fields in logs that are read by programs, where those of the ids are others: `key` is an API key's id.
FIELDS: Final = {
    "message": "message_id", "id": "message_id", "producer": "key", "key": "message_key", "session": "connection",
}  # fmt: skip


class Health:
    """One engine's failures and troubles."""

    def __init__(self) -> None:
        #: Failures that cost one unit only, by its kind.
        self.isolated: Counter[str] = Counter()
        self._troubles: dict[Trouble, str] = {}
        self._restarts: deque[float] = deque(maxlen=MANY_RESTARTS)
        self._restart_reason = ""
        self._lines = LogThrottle(*FAULTS)

    # Failures of one unit.

    def isolate(self, unit: str, error: BaseException, **ids: object) -> None:
        """A unit of this kind has failed, and it alone: count it, and log it with its ids."""
        self.isolated[unit] += 1
        if not (count := self._lines.admit(unit, now())):
            return
        which = " ".join(f"{name}={value!r}"[:200] for name, value in ids.items() if value is not None)
        text = str(error).strip().split("\n")[0][:500] or type(error).__name__
        unforeseen = None if isinstance(error, psycopg.Error) else error
        fields = {
            FIELDS.get(name, name): value if isinstance(value, int) else str(value)[:200]
            for name, value in ids.items() if value is not None
        }  # fmt: skip
        more = f", and {count - 1} more since the last line" if count > 1 else ""
        which = which or "no ids"
        logger.error("one %s failed%s: %s (%s)", unit, more, text, which, exc_info=unforeseen, extra=fields)

    def guard(self, unit: str, owner: object, call: Callable[..., Any], *arguments: Any) -> bool:
        """Call what belongs to one session, which alone is to suffer if that raises: its connection is ended, if
        `owner` has `break_off`. Returns whether it went well."""
        try:
            call(*arguments)
        except Exception as error:
            self.broken(unit, owner, error)
            return False
        return True

    def broken(self, unit: str, owner: object, error: BaseException) -> None:
        """A session's work failed in an unforeseen way: end its connection."""
        self.isolate(unit, error, session=getattr(owner, "name", None) or type(owner).__name__)
        end = getattr(owner, "break_off", None)
        if end is not None:
            try:
                end()
            except Exception:
                logger.exception("a session could not be ended")

    # Lasting troubles.

    def begin(self, what: Trouble, why: str) -> None:
        """Something does not work for the time being: said once, until `end`."""
        if what not in self._troubles:
            logger.error("%s: %s", what, why)
        self._troubles[what] = why

    def has(self, what: str) -> bool:
        """Whether this does not work."""
        return what in self._troubles

    def end(self, what: Trouble) -> None:
        """End a trouble; logged if there was one."""
        if self._troubles and self._troubles.pop(what, None) is not None:
            logger.info("%s: over", what)

    def forget(self) -> None:
        """The engine starts anew: forget the troubles of its former connections."""
        self._troubles.clear()

    def restarted(self, why: str) -> None:
        """The engine starts anew, since a connection is lost."""
        self._restarts.append(now())
        self._restart_reason = why

    def reasons(self) -> list[str]:
        """The reasons to give this process no work now, one sentence each, without names of hosts and users."""
        found = [f"{what}: {why}." for what, why in self._troubles.items()]
        if self._restarts_often:
            found.append(
                f"The engine started anew {MANY_RESTARTS} times within {RESTARTS_WITHIN:g} s: {self._restart_reason}."
            )
        return found

    @property
    def _restarts_often(self) -> bool:
        restarts = self._restarts
        return len(restarts) == MANY_RESTARTS and now() - restarts[0] < RESTARTS_WITHIN

    @property
    def kinds(self) -> Counter[str]:
        """The number of present faults of each kind."""
        return Counter(what.kind for what in self._troubles) + Counter(restarts=int(self._restarts_often))
