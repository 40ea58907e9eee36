"""Bulk operations: copy, move, put back, delay, deliver now or delete all messages that a search finds.

One is a row (`BulkOperation`). A step takes the next messages that fit, at most `STEP`, changes them with the
statements that the single operations use, and moves the row's cursor and counts on, all in one transaction. So each
message is done once, whatever ends a process in between, and any process may do the next step: listeners do
(`run_pending` in a `Scheduler`), the site does for those begun there, and `manage.py messages` does its own.

Messages that consumers or nodes have are left alone, and counted as such; a copy may be made of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.db import DEFAULT_DB_ALIAS, Error, IntegrityError, OperationalError, connections, transaction
from django.db.models import Q
from django.db.models.functions import Now

from queues.errors import BrokerError, Busy, OperationError
from queues.formats.limits import MAX_DELAY
from queues.models import BulkAction, BulkOperation, BulkState, Message, Outcome, Overflow, Queue, State
from queues.operations.audit_log import record, record_id
from queues.operations.messages import arrived, get_queue, move_some, newest, no_room, purge_batches, room_in, unpack
from queues.operations.search import Criteria, Look, Search
from queues.permissions.rules import Operation, Protocol, is_allowed
from queues.store.queries import query, whole

logger = logging.getLogger(__name__)

#: Messages in one step; messages in a preview's sample; ids that can be selected one by one.
STEP, SAMPLE, MAX_SELECTED = 500, 10, 1000
#: Messages that a preview counts.
MAX_COUNTED = 20_000
#: Seconds that `run_pending` works, and seconds until its next look after it found nothing.
TURN, IDLE = 1.0, 5.0
#: Seconds until the next look if all operations had ended or were in other processes' hands.
BUSY = 0.2
#: Limit of ended operations that are kept.
MAX_KEPT = 10_000

#: The states that each action changes. A copy can be made in any state.
STATES: dict[str, tuple[State, ...]] = {
    BulkAction.COPY: tuple(State),
    BulkAction.MOVE: (State.READY, State.DELAYED, State.DEAD),
    BulkAction.PUT_BACK: (State.READY, State.DELAYED, State.DEAD),
    BulkAction.DELAY: (State.READY, State.DELAYED),
    BulkAction.DELIVER_NOW: (State.DELAYED,),
    BulkAction.DELETE: (State.READY, State.DELAYED, State.DEAD),
}
NEED_TARGET = (BulkAction.COPY, BulkAction.MOVE)


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkPlan:
    """A request: an action, the criteria of its messages, and its arguments."""

    action: BulkAction
    criteria: Criteria
    target: str = ""
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """The messages of a plan: their number, whether that is all, and the first look."""

    count: int
    complete: bool
    sample: Look


def preview(plan: BulkPlan, using: str = DEFAULT_DB_ALIAS) -> Preview:
    """Count a plan's messages within a page's limits, and take the first ones. Raises as `start`."""
    search = _search(plan, newest(using), using)
    look = search.find("", MAX_COUNTED)
    sample = replace(look, ids=look.ids[:SAMPLE], times=look.times[:SAMPLE])
    most = plan.criteria.most or len(look.ids) + 1
    return Preview(min(len(look.ids), most), not look.cursor or most <= len(look.ids), sample)


def start(plan: BulkPlan, by: str, expected: int | None = None, using: str = DEFAULT_DB_ALIAS) -> BulkOperation:
    """Note an operation, with a row in the operators' chain; its steps are done by `step`.

    `expected` is the count of a complete preview. Raises OperationError or QueueNotFound for an invalid plan. """
    if plan.action in NEED_TARGET:
        _check_target(plan.target, using)
    if plan.action == BulkAction.DELAY and not (plan.delay is not None and 0 < plan.delay <= MAX_DELAY):
        raise OperationError("A delay is a number of seconds, more than 0.")
    with transaction.atomic(using=using):
        high = newest(using)
        _search(plan, high, using)
        operation = BulkOperation.objects.using(using).create(
            action=plan.action, criteria=plan.criteria.to_json(), target=plan.target, delay=plan.delay, by=by,
            high=high, expected=expected,
        )  # fmt: skip
        record(by, plan.action, record_id(operation), described(operation), using)
    return operation


def described(operation: BulkOperation) -> str:
    """An operation in words, for people and the audit chain. Searched texts from bodies are left out."""
    criteria = Criteria.from_json(operation.criteria)
    words = str(replace(criteria, text="…" if criteria.text else ""))
    if operation.target:
        words += f" → queue:{operation.target}"
    if operation.delay is not None:
        words += f" by {operation.delay:g} s"
    return words + (f"; {operation.expected:,} expected" if operation.expected is not None else "")


def step(id: int, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Do an operation's next step; returns whether more is to do. If another process is doing one, this returns at
    once.

    An operation that cannot go on is failed, with its reason. Raises Django's database errors, or Busy: then nothing
    was done.
    """
    return whole(lambda: _step(id, using), using)


def _step(id: int, using: str) -> bool:
    operation = _locked(id, using, skip_locked=True)
    if operation is None:
        return False
    try:
        with transaction.atomic(using=using):
            _advance(operation, using)
            operation.save(using=using)
    except BrokerError as error:
        operation.refresh_from_db(using=using)
        _end(operation, BulkState.FAILED, operation.by, using, str(error))
        return False
    if not operation.cursor:
        _end(operation, BulkState.DONE, operation.by, using)
    return bool(operation.cursor)


def _locked(id: int, using: str, skip_locked: bool = False) -> BulkOperation | None:
    """An operation, locked, unless it has ended or another process has locked it."""
    rows = BulkOperation.objects.using(using).select_for_update(skip_locked=skip_locked)
    return rows.filter(pk=id, state=BulkState.RUNNING).first()


def cancel(id: int, by: str, using: str = DEFAULT_DB_ALIAS) -> bool:
    """End an operation after the step under way; what was done stays done. False when it has ended already."""
    with transaction.atomic(using=using):
        if operation := _locked(id, using):
            _end(operation, BulkState.CANCELLED, by, using)
    return operation is not None


def forget_old(days: int, using: str = DEFAULT_DB_ALIAS) -> int:
    """Delete rows of operations that ended more than `days` days ago, and all but the newest `MAX_KEPT`."""
    ended = BulkOperation.objects.using(using).exclude(state=BulkState.RUNNING)
    old = Q(ended_at__lt=Now() - timedelta(days=days))
    if last := ended.order_by("-id").values_list("pk", flat=True)[MAX_KEPT - 1 : MAX_KEPT].first():
        old |= Q(pk__lt=last)
    return ended.filter(old).delete()[0]


def run_pending(using: str = DEFAULT_DB_ALIAS) -> float:
    """Do steps of all operations that have not ended, in turn, for a second; returns the seconds until the next look.

    Raises Django's OperationalError when the database is away.
    """
    deadline = time.monotonic() + TURN
    while running := _running(using):
        if not any([_try_step(id, using) for id in running]):
            return BUSY
        if time.monotonic() >= deadline:
            return 0.0
    return IDLE


def _running(using: str) -> list[int]:
    rows = BulkOperation.objects.using(using).filter(state=BulkState.RUNNING)
    return list(rows.order_by("id").values_list("pk", flat=True)[:100])


def _try_step(id: int, using: str, again: bool = True) -> bool:
    """Do a step. A fault ends this operation only, unless the database is away. Returns whether more is to do."""
    try:
        return step(id, using)
    except OperationalError:
        raise
    except Busy:
        return False
    except (Error, ValueError, TypeError) as error:
        if again and isinstance(error, IntegrityError):  # a key was just taken; the next try sees it
            return _try_step(id, using, again=False)
        logger.exception("bulk operation %d cannot go on", id)
        with transaction.atomic(using=using):
            if operation := _locked(id, using):
                text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                _end(operation, BulkState.FAILED, operation.by, using, text)
        return False


class LocalRunner:
    """A thread of this process that does steps, for operations begun where no listener runs."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Start the thread, unless it runs."""
        with self._guard:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="bulk operations", daemon=True)
                self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end."""
        if self._thread is not None:
            self._thread.join(timeout)

    @staticmethod
    def _run() -> None:
        try:
            while run_pending() == 0.0:
                pass
        except Exception as error:  # a listener, or the next look at the page, goes on
            logger.warning("bulk operations wait: %s", error)
        finally:
            connections.close_all()


#: The site's instance.
local_runner = LocalRunner()


# One step.


def _search(plan: BulkPlan, high: int, using: str) -> Search:
    """The search of a plan. Raises OperationError or QueueNotFound for what cannot be."""
    search = Search(plan.criteria, high, using, leases=plan.action == BulkAction.COPY)
    if search.is_archive and plan.action != BulkAction.COPY:
        raise OperationError("Finished messages can be copied, and nothing else.")
    if len(plan.criteria.ids) > MAX_SELECTED:
        raise OperationError(f"At most {MAX_SELECTED:,} messages can be selected one by one.")
    if plan.action == BulkAction.DELETE and not plan.criteria.queue:
        raise OperationError("Messages of one queue are deleted at a time: name it.")
    return search


def _check_target(target: str, using: str) -> Queue:
    if not target:
        raise OperationError("Name the queue to which they go.")
    if not is_allowed(Protocol.OPERATOR, Operation.PUBLISH, "queue", target):
        raise OperationError(f"Nothing can be moved to {target!r}: it is the system's.")
    return get_queue(target, using)


def _advance(operation: BulkOperation, using: str) -> None:
    """Take the next messages, change them, and move the cursor and the counts on."""
    plan = BulkPlan(
        action=BulkAction(operation.action), criteria=Criteria.from_json(operation.criteria), target=operation.target,
        delay=operation.delay,
    )  # fmt: skip
    search = _search(plan, operation.high, using)
    most = plan.criteria.most
    look = search.look(operation.cursor, min(STEP, most - operation.done) if most else STEP)
    done = _Step(plan, operation.by, using).change(search, look)
    operation.looked += look.looked
    operation.done += done
    operation.cursor = "" if most and operation.done >= most else look.cursor
    operation.skipped += len(look.ids) - done


class _Step:
    """The changes of one step, by queue and state."""

    def __init__(self, plan: BulkPlan, by: str, using: str) -> None:
        self.plan = plan
        self.by = by
        self.using = using
        #: Messages that were selected one by one have a row each in the operators' chain.
        self.named = bool(plan.criteria.ids)
        self.target = _check_target(plan.target, using) if plan.action in NEED_TARGET else None

    def change(self, search: Search, look: Look) -> int:
        """Change what was found; returns how many messages that were."""
        if search.is_archive:
            return self._copy_archived(look)
        rows = Message.objects.using(self.using).filter(pk__in=look.ids, state__in=STATES[self.plan.action])
        groups: dict[tuple[int, int, str], list[int]] = defaultdict(list)
        for id, queue, state, home in rows.order_by("id").values_list(
            "id", "queue_id", "state", "headers__dead-letter__queue"
        ):
            named = isinstance(home, str) and self.plan.action == BulkAction.PUT_BACK
            groups[queue, state, home if named else ""].append(id)
        queues = Queue.objects.using(self.using).in_bulk({queue for queue, *_ in groups})
        changes: dict[str, Callable[[Queue, State, str, list[int]], int]] = {
            BulkAction.COPY: self._copy, BulkAction.MOVE: self._move, BulkAction.PUT_BACK: self._put_back,
            BulkAction.DELAY: self._delay, BulkAction.DELIVER_NOW: self._deliver_now, BulkAction.DELETE: self._delete,
        }  # fmt: skip
        change = changes[self.plan.action]
        return sum(
            change(queues[queue], State(state), home, ids)
            for (queue, state, home), ids in groups.items()
            if queue in queues
        )

    def _move(self, queue: Queue, state: State, _: str, ids: list[int]) -> int:
        assert self.target is not None
        if queue == self.target:
            return 0
        return self._moved(queue, self.target, state, ids, "move")

    def _put_back(self, queue: Queue, state: State, home: str, ids: list[int]) -> int:
        if state == State.DEAD:
            return self._moved(queue, queue, state, ids, "put-back")
        # The header might be a producer's own: only a queue that sends its dead letters here gets them back.
        found = Queue.objects.using(self.using).filter(name=home, dead_letter_queue=queue)
        source = found.first() if home else None
        if source is None or not is_allowed(Protocol.OPERATOR, Operation.PUBLISH, "queue", source.name):
            return 0
        return self._moved(queue, source, state, ids, "put-back", home=True, now=True)

    def _deliver_now(self, queue: Queue, state: State, _: str, ids: list[int]) -> int:
        return self._moved(queue, queue, state, ids, "deliver-now", now=True)

    def _moved(
        self, source: Queue, target: Queue, state: State, ids: list[int], event: str, now: bool = False,
        home: bool = False,
    ) -> int:  # fmt: skip
        return move_some(
            source, target, [state], self.using, event=event, by=self.by, ids=ids, named=self.named, now=now, home=home
        )

    def _delay(self, queue: Queue, state: State, _: str, ids: list[int]) -> int:
        if state == State.READY:
            unpack(ids, self.using)
        [(count,)] = query(
            "delay_messages", self.using, queue=queue.pk, ids=ids, delay=self.plan.delay, by=self.by, named=self.named
        )
        return int(count)

    def _delete(self, queue: Queue, state: State, _: str, ids: list[int]) -> int:
        return sum(purge_batches(queue.pk, state, Outcome.REMOVED, self.using, ids, self.by, named=self.named))

    def _copy(self, queue: Queue, state: State, _: str, ids: list[int]) -> int:
        return self._copy_from(queue.pk, ids, None)

    def _copy_archived(self, look: Look) -> int:
        """Copies of finished messages: of those whose payload was kept."""
        if not look.ids:
            return 0
        between = min(look.times), max(look.times)
        kept = look.archived(self.using).filter(payload__isnull=False)
        groups: dict[int, list[int]] = defaultdict(list)
        for id, queue in kept.order_by("id").values_list("id", "queue_id"):
            groups[queue].append(id)
        return sum(self._copy_from(queue, ids, between) for queue, ids in groups.items())

    def _copy_from(self, source: int, ids: Iterable[int], between: tuple[datetime, datetime] | None) -> int:
        """Copy messages of a queue, finished between two times or unfinished, within what the target may hold."""
        target, wanted = self.target, sorted(set(ids))
        assert target is not None
        room = room_in(target, True, self.using)
        if target.overflow == Overflow.REJECT and room is not None and room < len(wanted):
            raise no_room(target)
        low, high = between or (None, None)
        [(count, first)] = query(
            "copy_messages", self.using, source=source, target=target.pk, ids=wanted, by=self.by, named=self.named,
            archived=between is not None, low=low, high=high,
        )  # fmt: skip
        arrived(target, count, first, room, self.using)
        return int(count)


def _end(operation: BulkOperation, state: BulkState, by: str, using: str, error: str = "") -> None:
    """Note that an operation has ended, in its row and in the operators' chain."""
    operation.state, operation.error, operation.ended_at = state, error, datetime.now(UTC)
    operation.save(using=using)
    detail = f"{operation.done:,} done, {operation.skipped:,} left alone"
    record(by, state, record_id(operation), f"{detail}: {error}" if error else detail, using)
