"""A lane: settlements that are written by themselves, whatever becomes of others.

One lane has those of all queues that are not audited, each audited queue has its own (`audited_queues.py`), and one has
purges. Prefetched queues add to the `Settlements` that `of` gives them; the settlement writer takes all that is
gathered as parts, and writes these. A part is written as a whole; one that cannot be is halved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from operator import attrgetter
from typing import Any, Protocol

from queues.engine.database import Connection
from queues.engine.health import Health
from queues.engine.settle.batches import Part, Returns, SettlementKind, Settlements
from queues.engine.settle.segments import Ranges


class Owner(Protocol):
    """The settlement writer as lanes use it. `SettlementWriter` documents the methods."""

    health: Health

    def gather(self, lane: Lane, acks: int, work: int) -> None: ...
    def refuse(self, told: Iterable[Callable[[], None]]) -> None: ...
    def give_up(self, acks: int, work: int) -> None: ...
    def begin_record(self, mark: int) -> None: ...
    def end_records(self, marks: Iterable[int]) -> None: ...


class Lane:
    """Settlements of queues that are not audited. Each part is one statement."""

    #: The audited queue; whether its events are recorded; whether its parts are written in order, each in one
    #: transaction.
    name: str | None = None
    recording = False
    in_order = False

    def __init__(self, owner: Owner) -> None:
        self.returns = Returns()
        #: The parts being written.
        self.writing: deque[Part] = deque()
        self._owner = owner
        self._alike: dict[tuple[Any, ...], Settlements] = {}
        self._gathered: dict[Settlements, None] = {}

    # Gathering.

    def of(
        self, kind: SettlementKind, consumer: int | None = None, keep: int = 0, job: bool = False, late: bool = False,
        target: int | None = None, by: str = "", results: bool = False,
    ) -> Settlements:  # fmt: skip
        """The batch in which settlements of this kind are gathered; jobs with `results` by themselves."""
        key = kind, consumer, keep, job, late, target, by, results
        if key not in self._alike:
            self._alike[key] = Settlements(kind, self, consumer, keep, job, late, target, by)
        return self._alike[key]

    def takes_run(self, settlements: Settlements, ids: range) -> bool:
        """Whether settlements may gather acknowledgements of these messages as a run."""
        return True

    def gather(self, settlements: Settlements, ids: Sequence[int], work: int) -> Iterable[int | None]:
        """Prepare to gather these messages. Returns each one's API key in an audited queue, unless the settlements have
        it."""
        if not settlements.ids:
            self._gathered[settlements] = None
        if settlements.kind is SettlementKind.RETURN:
            self.returns.add()
        if settlements.kind is SettlementKind.ACKNOWLEDGE:
            self._owner.gather(self, len(ids), work)
        else:
            self._owner.gather(self, 0, 0)
        return ()

    @property
    def idle(self) -> bool:
        return not (self._gathered or self.writing)

    @property
    def waits(self) -> bool:
        """Whether nothing can be written now."""
        return False

    @property
    def releasing(self) -> bool:
        """Whether leases are on their way back to the store."""
        return any(one.releases for part in self.writing for one in part)

    def forget_leases(self) -> None:
        """The leases were lost: the node that reaps them returns the messages, and every acknowledgement is late."""
        parts = [*self.writing, *([[one.take() for one in self._gathered]] if self._gathered else ())]
        self.writing.clear()
        self._gathered.clear()
        for part in parts:
            for one in part:
                if one.releases:
                    self._owner.refuse(one.told)
                else:
                    one.lose_leases()
            self.writing.append([one for one in part if not one.releases])  # an empty one may still have been committed
        self.returns.forget()

    def forget_history(self) -> None:
        """The store's history differs: gathered ids may belong to other messages now."""
        for one in [*(one.take() for one in self._gathered), *(one for part in self.writing for one in part)]:
            if one.kind is SettlementKind.ACKNOWLEDGE:
                self._owner.give_up(one.count, one.work)
                self._owner.refuse(one.told)
        self.writing.clear()
        self._gathered.clear()

    # Writing.

    def take(self) -> None:
        """Take the gathered settlements for writing. Returned leases wait until earlier ones are in the store."""
        held = self.releasing
        taken = [one for one in self._gathered if one.count and not (held and one.releases)]
        self._gathered = {one: None for one in self._gathered if held and one.releases}
        if not held:
            self.returns.take()
        everything = [some for one in sorted(taken, key=attrgetter("kind")) for some in one.take().chunks]
        self.writing.extend(self._parts(everything))

    def _parts(self, everything: Part) -> Iterator[Part]:
        """Acknowledgements together with their leases; all others one by one."""
        together = [one for one in everything if one.kind is SettlementKind.ACKNOWLEDGE and not one.late]
        if together:
            yield together
        yield from ([one] for one in everything if one.kind is not SettlementKind.ACKNOWLEDGE or one.late)

    def transaction(self, connection: Connection, part: Part) -> AbstractAsyncContextManager[Any]:
        """The transaction in which a part is written."""
        return connection.transaction() if any(one.late for one in part) else nullcontext()

    def record(self, settlements: Settlements, first_ids: dict[int, int] | None = None, target: str = "") -> None:
        """Record what has become of messages, by their ids as published (None: `ids` are these): those that were really
        there. `target`: name of the queue that dead letters went to."""

    def record_slots(self, ranges: Ranges, missing: Collection[int]) -> None:
        """Record acknowledged slots of segments, but for these segments, which were not there."""

    async def lock_chain(self, connection: Connection) -> None:
        """The open transaction's records are known, except for results to fetch."""

    def put_off(self, part: Part) -> None:
        """Only this remains of the part; the rest is written."""
        self.writing[0] = part

    async def written_before(self, connection: Connection) -> Part | None:
        """The part with an unknown commit on the lost connection, if it was committed."""
        return None

    def committed(self) -> None:
        """A part is durable."""

    def end_round(self, refused: Exception | None) -> Exception | None:
        """The parts are written, unless the server refuses the rest for now; returns why."""
        if not self.releasing:
            self.returns.written()
        return refused
