"""The tasks that `python -m tests.rigs.celery_smoke` sends, and the expected effects."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from celery import chain, chord, group

from tests.rigs.celery_smoke import app as smoke_app
from tests.rigs.celery_smoke.app import app, count, hold, later, part, step, stubborn, total

#: The kinds of a hundred messages; the rest are plain calls.
SHARES = {"group": 15, "step": 12, "part": 18, "retry": 5, "later": 10, "revoked": 5}
GROUP, CHAIN, CHORD = 10, 4, 9
#: Seconds from now that tasks for later are due at, at most; and those that are revoked, so many at a time.
LATER, REVOKED, TOGETHER = 8.0, 5.0, 50
#: Seconds that workers have to say that they revoked.
PATIENCE = 30.0

Effect = tuple[str, int, str]


class SmokePlan:
    """Calls of all kinds of tasks. `expected`: every effect that they must have; `tasks`: those with results."""

    def __init__(self, tasks: int) -> None:
        self.expected: set[Effect] = {("held", 0, "-")}
        self.tasks = 1
        shares = {kind: tasks * share // 100 for kind, share in SHARES.items()}
        self.revoked = shares.pop("revoked")
        self._calls: list[Callable[[], object]] = []
        for kind, several in (("group", GROUP), ("step", CHAIN), ("part", CHORD)):
            for number in range(shares[kind] // several):
                self._several(kind, number)
        for number in range(shares["retry"]):
            self._retried(number)
        for number in range(shares["later"]):
            self._delayed(number)
        for number in range(tasks - self.tasks - self.revoked):
            self._expect(("plain", number, "-"))
            self._calls.append(lambda number=number: count.delay("plain", number))  # type: ignore[misc]
        random.Random(0).shuffle(self._calls)

    def _expect(self, *effects: Effect, tasks: int = 1) -> None:
        self.expected.update(effects)
        self.tasks += tasks

    def _several(self, kind: str, number: int) -> None:
        if kind == "group":
            own = range(number * GROUP, (number + 1) * GROUP)
            self._expect(*((kind, one, "-") for one in own), tasks=GROUP)
            self._calls.append(lambda: group(count.si(kind, one) for one in own)())
        elif kind == "step":
            self._expect(*((kind, number, str(value)) for value in range(CHAIN)), tasks=CHAIN)
            self._calls.append(lambda: chain(step.s(0, number), *[step.s(number)] * (CHAIN - 1))())
        else:
            own = range(number * CHORD, (number + 1) * CHORD)
            self._expect(*((kind, one, "-") for one in own), ("total", number, str(sum(own))), tasks=CHORD + 1)
            self._calls.append(lambda: chord([part.s(one) for one in own])(total.s(number)))

    def _retried(self, number: int) -> None:
        self._expect(*(("retry", number, str(attempt)) for attempt in range(smoke_app.RETRIES + 1)))
        self._calls.append(lambda: stubborn.delay(number))

    def _delayed(self, number: int) -> None:
        def call() -> None:
            due = time.time() + random.uniform(0.5, LATER)
            if number % 2:
                later.apply_async((number, due), countdown=due - time.time())
            else:
                later.apply_async((number, due), eta=datetime.fromtimestamp(due, UTC))

        self._expect(("later", number, "due"))
        self._calls.append(call)

    def send_revoked(self, workers: int) -> None:
        """Send tasks for a little later and revoke them. Raises TimeoutError when a worker does not say that it did."""
        numbers = range(self.revoked)
        for some in (numbers[first : first + TOGETHER] for first in numbers[::TOGETHER]):
            ids = [count.apply_async(("revoked", number), countdown=REVOKED).id for number in some]
            answers = app.control.revoke(ids, reply=True, timeout=PATIENCE, limit=workers)
            if len(answers) < workers:
                raise TimeoutError(f"{len(answers)} of {workers} workers answered to a revoke within {PATIENCE:g} s")

    def send(self) -> Iterator[None]:
        """Send the rest, all kinds mixed, a call at each step."""
        hold.delay(0)
        for call in self._calls:
            call()
            yield


def effects() -> Counter[Effect]:
    """The effects so far, with their counts."""
    seen: Counter[Effect] = Counter()
    if smoke_app.EFFECTS.exists():
        for line in smoke_app.EFFECTS.read_text().splitlines():
            kind, number, detail = line.split(" ")
            seen[kind, int(number), detail] += 1
    return seen

