"""Finding messages in the store and in the archive, a bounded number of rows at a time.

A search goes through the rows in an order that an index gives: of one queue and state by theirs, by a key, by given
ids, else by the place of every message; of the archive from the newest back, a span of time at a time. A look goes so
far and says how far; its cursor is where the next one goes on. Nothing is counted, locked or changed.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, OperationalError
from django.db.models import QuerySet
from psycopg.errors import QueryCanceled

from queues.config.settings import settings
from queues.errors import OperationError
from queues.formats.reasons import MAX_REASON, fingerprint
from queues.models import ApiKey, ArchivedMessage, Content, Queue, State
from queues.operations.messages import get_queue
from queues.store.counts import queue_counts
from queues.store.queries import query, time_limit

#: Rows that one statement reads; with reasons or bodies to search, fewer.
ROWS, ROWS_WITH_REASONS, ROWS_WITH_BODIES = 20_000, 10_000, 2_000
#: Statements of one search, and milliseconds for each.
LOOKS = 3
TIMEOUT = 900
#: Factor by which the first statement reads fewer rows of the store. It usually finds enough.
FIRST_LOOK = 40
LEAST_ID, MAX_ID = -(1 << 63), (1 << 56) - 1
#: Seconds of the archive in the first span, and the factor by which a span grows after few rows.
SPAN, WIDER = 2.0, 30
#: Factor by which a look that took too long is smaller at its second try.
NARROWER = 50
#: Rows in a span from which on the next span is not wider.
ENOUGH = 2_000
#: Days searched of an archive that is kept for ever.
MAX_ARCHIVE = 3650

STATES: Final[Mapping[str, tuple[State, ...]]] = {
    "ready": (State.READY,), "delayed": (State.DELAYED,), "dead": (State.DEAD,),
    "leased": (State.LEASED, State.DEAD_LEASED),
}  # fmt: skip
FINISHED: Final = "finished"
#: Protocols whose messages are known by their content.
CONTENTS: Final[Mapping[str, Content]] = {"celery": Content.CELERY, "peerbus": Content.LETTER}


class SearchTooSlow(OperationError):
    """The next rows cannot be read in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Criteria:
    """The criteria of a search; all have to fit, and an empty one fits all.

    `state` is one of STATES, or FINISHED for the archive. Times are those of publishing, in the archive those of the
    end. `value` is the text of the header. `producer` is the name of an API key. `protocol` is known for letters, for
    Celery's tasks, and for keys that are good for no other. `reason` is that of a dead letter, or of what stands in a
    dead-letter queue, as `queues.formats.reasons.fingerprint` has it. `most` is how many of those that are found are
    operated on; 0: all. `ids` are places or first ids.
    """

    queue: str = ""
    state: str = ""
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    key: str = ""
    header: str = ""
    value: str = ""
    producer: str = ""
    protocol: str = ""
    text: str = ""
    reason: str = ""
    most: int = 0
    ids: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The criteria that are set, as JSON can have them."""
        given = {name: value for name, value in asdict(self).items() if value}
        return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in given.items()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Criteria:
        """The reverse of `to_json`. Raises ValueError."""
        known = {field.name for field in fields(cls)}
        if unknown := set(given) - known:
            raise ValueError(f"there is no {unknown.pop()!r}")
        values = dict(given)
        for name in {"since", "until"} & set(values):
            values[name] = datetime.datetime.fromisoformat(values[name])
        if "ids" in values:
            values["ids"] = tuple(map(int, values["ids"]))
        return cls(**values)

    def __str__(self) -> str:
        """In words, for people and the audit chain; of the ids only how many."""
        words = self.to_json()
        if self.ids:
            words["ids"] = f"{len(self.ids):,} selected"
        return ", ".join(f"{name} {value}" for name, value in words.items()) or "all messages"


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look: places (in the archive: first ids with their times), the number of rows read, and the
    cursor of the next look, empty at the end."""

    ids: list[int]
    looked: int
    cursor: str
    times: tuple[datetime.datetime, ...] = ()

    def archived(self, using: str = DEFAULT_DB_ALIAS) -> QuerySet[ArchivedMessage]:
        """Rows of the archive, which an index finds by time."""
        rows = ArchivedMessage.objects.using(using).filter(pk__in=self.ids)
        return rows.filter(finished_at__gte=min(self.times), finished_at__lte=max(self.times)) if self.ids else rows


class Search:
    """A search with its names read; `look` may be called any number of times.

    Raises QueueNotFound or OperationError for names that there are not.
    """

    def __init__(
        self, criteria: Criteria, high: int = MAX_ID, using: str = DEFAULT_DB_ALIAS, leases: bool = True
    ) -> None:
        """Messages that arrive after `newest` gave `high` are ignored; without `leases` no table is read for these."""
        if criteria.state and criteria.state != FINISHED and criteria.state not in STATES:
            raise OperationError(f"There is no state {criteria.state!r}.")
        if criteria.value and not criteria.header:
            raise OperationError("A header's value needs its name.")
        if criteria.reason and criteria.state == FINISHED:
            raise OperationError("The archive has no reasons.")
        self.criteria = criteria
        self.using = using
        self.queue: Queue | None = get_queue(criteria.queue, using) if criteria.queue else None
        self.rows = ROWS_WITH_BODIES if criteria.text else ROWS
        self._filters: dict[str, Any] = {
            "queue": self.queue.pk if self.queue else None, "key": criteria.key or None,
            "header": criteria.header or None, "value": criteria.value or None, "producers": self._producers(),
            "content": CONTENTS.get(criteria.protocol), "text": criteria.text.encode() or None,
        }  # fmt: skip
        self._high = high
        self._leases = leases

    @property
    def is_archive(self) -> bool:
        """Whether the archive is searched."""
        return self.criteria.state == FINISHED

    def find(self, cursor: str = "", most: int = 50) -> Look:
        """Search on from a cursor until `most` are found or a page's time is over. Raises SearchTooSlow."""
        found = Look([], 0, cursor)
        for narrower in (1, NARROWER):
            try:
                with time_limit(TIMEOUT, self.using):
                    for near in (1 if self.is_archive else FIRST_LOOK, *[1] * (LOOKS - 1)):
                        part = self.look(found.cursor, most - len(found.ids), narrower=narrower * near)
                        found = Look(
                            found.ids + part.ids, found.looked + part.looked, part.cursor, found.times + part.times
                        )
                        if not found.cursor or len(found.ids) == most:
                            break
                break
            except OperationalError as error:
                if not isinstance(error.__cause__, QueryCanceled):
                    raise
                if found.cursor != cursor:
                    break
                if narrower == NARROWER:
                    raise SearchTooSlow("It takes too long: ask for one queue and state, or for less time.") from error
        return found

    def look(self, cursor: str, most: int, narrower: int = 1) -> Look:
        """One statement: at most `most` fitting messages among the next rows; `narrower` divides the number of rows.

        Raises OperationError for an invalid cursor. """
        try:
            if self.is_archive:
                return self._look_in_archive(cursor, most, narrower)
            return self._look_in_store(cursor, most, max(1, self.rows // narrower))
        except (ValueError, OverflowError) as error:  # the latter for a time before the first year
            raise OperationError(f"There is no such cursor: {cursor or self.criteria.until!r}.") from error

    def _look_in_store(self, cursor: str, most: int, rows: int) -> Look:
        stage, _, place = cursor.partition(":")
        wanted, after = (int(stage), int(place)) if cursor else (0, LEAST_ID)
        number = next((n for n in self._walks if n >= wanted >= 0), None)
        if number is None:
            return Look([], 0, "")
        if number > wanted:
            after = LEAST_ID
        if reason := self.criteria.reason:  # told apart here: of those that are read not many more than are wanted
            rows = min(rows, ROWS_WITH_REASONS, max(ROWS_WITH_BODIES, 4 * most))
        [(ids, looked, last, reasons)] = query(
            "find_messages", self.using, **self._filters, **self._walks[number], after=after, rows=rows,
            most=rows if reason else most, high=self._high, since=self.criteria.since, until=self.criteria.until,
            ids=list(self.criteria.ids), length=MAX_REASON if reason else None,
        )  # fmt: skip
        found = list(ids or ())
        if reason:
            groups = (reason, fingerprint(reason))
            found = [id for id, text in zip(found, reasons or (), strict=True) if fingerprint(text) in groups]
            if len(found) >= most:
                found = found[:most]
                return Look(found, ids.index(found[-1]) + 1, f"{number}:{found[-1]}")
        if looked == rows or len(found) == most:
            cursor = f"{number}:{last}"
        else:
            cursor = next((f"{n}:{LEAST_ID}" for n in self._walks if n > number), "")
        return Look(found, looked, cursor)

    @cached_property
    def _walks(self) -> dict[int, dict[str, Any]]:
        """The index scans of a search, in order, by their numbers in cursors. In a queue each state but leased has an
        index; empty states are left out."""
        wanted = STATES.get(self.criteria.state)
        common = {"state": None, "states": wanted and list(map(int, wanted)), "queues": None}
        if self.criteria.ids:
            return {0: common | {"way": "ids"}}
        if self.criteria.key:
            every = Queue.objects.using(self.using).values_list("pk", flat=True)
            return {0: common | {"way": "key", "queues": [self.queue.pk] if self.queue else list(every)}}
        if self.queue is None or wanted == STATES["leased"]:
            return {0: common | {"way": "all"}}
        if wanted is not None:
            return {0: common | {"way": "queue", "state": int(wanted[0])}}
        leases = common | {"way": "all", "states": list(map(int, STATES["leased"]))}
        counts = queue_counts(self.queue.pk, self.using)
        return {
            n: leases if name == "leased" else common | {"way": "queue", "state": int(states[0])}
            for n, (name, states) in enumerate(STATES.items())
            if getattr(counts, name) and (self._leases or name != "leased")
        }

    def _look_in_archive(self, cursor: str, most: int, narrower: int) -> Look:
        now = datetime.datetime.now(datetime.UTC)
        if cursor:
            time, id, seconds = cursor.split(",")
            high, below, span = datetime.datetime.fromisoformat(time), int(id), float(seconds)
        else:
            high, below, span = self.criteria.until or now, LEAST_ID, SPAN
        if high.tzinfo is None or not 0 < span < 1e12:
            raise ValueError
        span /= narrower
        first = self.criteria.since or now - datetime.timedelta(days=settings.BROKER_ARCHIVE_DAYS or MAX_ARCHIVE)
        low = max(first, high - datetime.timedelta(seconds=min(span, MAX_ARCHIVE * 86_400.0)))
        wanted = list(self.criteria.ids) or None
        if wanted is not None:  # an index leads near to them
            low = first
        [(times, ids, looked)] = query(
            "find_archived", self.using, **self._filters, ids=wanted, low=low, high=high, below=below, most=most
        )
        found = list(ids or ())
        if len(found) == most:
            cursor = f"{times[-1].isoformat()},{found[-1]},{span}"
        else:
            wider = span * WIDER if looked < ENOUGH else span
            cursor = f"{low.isoformat()},{LEAST_ID},{wider}" if low > first else ""
        return Look(found, looked, cursor, tuple(times or ()))

    def _producers(self) -> list[int] | None:
        """The API keys that may have published it; None for any."""
        keys = ApiKey.objects.using(self.using)
        if self.criteria.producer:
            keys = keys.filter(name=self.criteria.producer)
        if self.criteria.protocol and self.criteria.protocol not in CONTENTS:
            keys = keys.filter(protocols=[self.criteria.protocol])
        elif not self.criteria.producer:
            return None
        found = list(keys.values_list("pk", flat=True))
        if self.criteria.producer and not found:
            raise OperationError(f"There is no such API key {self.criteria.producer!r}, or not for this protocol.")
        return found
