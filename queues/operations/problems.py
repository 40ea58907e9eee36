"""Problems of the broker, in words, with their remedies.

The texts have figures that change slowly: a page that refreshes itself is to read a problem out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter

from django.apps import apps

from queues.models import QueueKind
from queues.operations.overview import NEW_NODES, QueueState
from queues.operations.state import BrokerState, Problem, Trend
from queues.permissions.addresses import queue_words

#: Of one kind, the rest is counted.
MAX_SHOWN = 5
#: A growing queue: least difference of messages and least factor within some minutes, and the number of samples.
GROWN, GROWTH, SAMPLES = 100, 1.2, 3
#: Seconds for which the first message waits before a queue without a consumer is worth a word.
WAITS = 30.0
#: Nodes that began within the last minutes and died before it is worth a word.
RESTARTS = 2
#: A disk is full soon: hours left, and the part of it that is free. A database grows fast: bytes, and part, an hour.
HOURS_LEFT, FREE_LEFT = 24.0, 0.1
FAST_BYTES, FAST_PART = 1 << 30, 0.1
GIB = 1 << 30
#: Applications that hold a transaction open because they have to.
BACKUPS = ("pg_dump", "pg_dumpall", "pg_basebackup")
NO_TREND = Trend()


def find_problems(state: BrokerState) -> list[Problem]:
    """All problems, the worst first; of a queue one, which says all that is wrong with it."""
    finders: Sequence[Callable[[BrokerState], Iterable[Problem]]] = (
        _unready, _chains, _disk, _holders, _nodes, _standbys, _of_queues, _etl, _paused, _idle,
    )  # fmt: skip
    found = chain.from_iterable(find(state) for find in finders)
    return [problem for _, same in groupby(found, attrgetter("kind")) for problem in _shortened(list(same))]


def _shortened(problems: list[Problem]) -> list[Problem]:
    if len(problems) <= MAX_SHOWN:
        return problems
    last, more = problems[MAX_SHOWN - 1], len(problems) - MAX_SHOWN + 1
    rest = Problem(f"{last.kind}-more", f"{more:,} more like this.", "The list of queues has them.", notice=last.notice)
    return [*problems[: MAX_SHOWN - 1], rest]


def _unready(state: BrokerState) -> Iterator[Problem]:
    for n, reason in enumerate(state.unready):
        yield Problem("unready", reason, "This process takes no work until it passes; its log says more.", n)
    for n, note in enumerate(state.notes):
        yield Problem("note", note, "Look at the audit chain “operators” for when and where.", n)
    if not state.overview.nodes:
        here = apps.is_installed("wire")
        node = "manage.py runwire" if here else "a Celery worker of this project, or fivewire runwire"
        yield Problem("nodes", "No node of the broker runs.", f"Start one: {node}.")


def _chains(state: BrokerState) -> Iterator[Problem]:
    for kind, id, name, finding in state.records:
        if kind == "chain":
            advice = "Compare it with a backup and with the signed anchors; nothing of it counts after the broken row."
            yield Problem("chain", f"The audit chain “{name}” is broken: {finding}", advice, id)


def _disk(state: BrokerState) -> Iterator[Problem]:
    hourly, disk = state.growth, state.disk
    if disk is not None:
        hours = disk.free / hourly if hourly else None
        if disk.free < FREE_LEFT * disk.total or (hours is not None and hours < HOURS_LEFT):
            left = "" if hours is None else f", for about {max(round(hours), 1)} h at the pace of the last hour"
            yield Problem(
                "disk", f"The database's disk has {disk.free / GIB:,.1f} GiB left{left}.",
                "Purge what is not needed, shorten the retention of the archive, or give it a larger disk.",
            )  # fmt: skip
    elif hourly > max(FAST_BYTES, FAST_PART * (state.database_bytes or 0)):
        yield Problem(
            "disk", f"The database grows by {hourly / GIB:,.1f} GiB an hour.",
            "See which queue grows and what holds back vacuum, and look after its server's disk.",
        )  # fmt: skip


def _holders(state: BrokerState) -> Iterator[Problem]:
    for holder in state.overview.holders:
        age = f"{holder.xids:,} transactions"
        if holder.seconds is not None:
            minutes = int(holder.seconds // 60)
            age = "a minute" if minutes <= 1 else f"{minutes} minutes"
        if holder.kind == "backend":
            who = f"{holder.application or 'a session'} of {holder.user or 'an unknown user'}, pid {holder.name}"
            backup = holder.application in BACKUPS
            advice = "Have its program commit, or end the session: its transaction is rolled back."
            yield Problem(
                "holder", f"Vacuum is held back: {who}, has had a transaction open for {age}.",
                "A backup reads one moment of the database until it ends." if backup else advice, holder=holder,
                notice=backup,
            )  # fmt: skip
        elif holder.kind == "prepared":
            advice = "COMMIT PREPARED or ROLLBACK PREPARED it."
            text = f"Vacuum is held back by the prepared transaction {holder.name}."
            yield Problem("holder", text, advice, holder.name)
        else:
            advice = "Bring its reader back, or drop it: pg_drop_replication_slot."
            text = f"Vacuum is held back by the {holder.state} replication slot {holder.name}."
            yield Problem("holder", text, advice, holder.name)


def _nodes(state: BrokerState) -> Iterator[Problem]:
    died = state.overview.died
    if len(died) >= RESTARTS:
        names = ", ".join(dict.fromkeys(died))
        yield Problem(
            "restarts",
            f"Nodes die: {len(died)} that began within {NEW_NODES} minutes ended without leaving ({names}).",
            "Their logs say why; a process that is killed for want of memory has none.",
        )  # fmt: skip


def _standbys(state: BrokerState) -> Iterator[Problem]:
    lag = state.overview.lag
    if lag is not None and lag >= 60:
        text = f"A standby of the database is {int(lag // 60)} minutes behind."
        yield Problem("standby", text, "What it lacks is lost if it is promoted now.")


def _of_producers(state: BrokerState) -> Iterator[QueueState]:
    return (queue for queue in state.overview.queues if queue.kind != QueueKind.MAILBOX)


def _of_queues(state: BrokerState) -> Iterable[Problem]:
    """The problems of queues, one per queue. A queue usually has one cause, so its first problem also names the
    others."""
    found: dict[object, Problem] = {}
    for problem in chain(_deserted(state), _growing(state), _dead_letters(state)):
        first = found.get(problem.id)
        if first is not None:
            more = problem.text.removeprefix(queue_words(problem.queue))
            problem = replace(first, text=f"{first.text} It{more}", dead=first.dead or problem.dead)
        found[problem.id] = problem
    return found.values()


def _deserted(state: BrokerState) -> Iterator[Problem]:
    for queue in _of_producers(state):
        if queue.nodes or queue.paused or queue.out_rate or state.oldest.get(queue.id, 0.0) < WAITS:
            continue
        if state.trends.get(queue.id, NO_TREND).completed:
            yield Problem(
                "deserted", f"{queue_words(queue.name)} has lost its consumers: messages wait, some were consumed "
                "within the hour.",
                "Start them again, and see in their logs why they went.", queue.id, queue=queue.name,
            )  # fmt: skip


def _growing(state: BrokerState) -> Iterator[Problem]:
    for queue in _of_producers(state):
        if queue.paused or queue.counts.ready < GROWN:
            continue
        trend = state.trends.get(queue.id, NO_TREND)
        first, last = trend.first_ready, trend.last_ready
        rising = last - first >= GROWN and last >= GROWTH * first and last >= 0.9 * trend.most_ready
        if trend.samples >= SAMPLES and rising and trend.came > trend.went:
            yield Problem(
                "growing", f"{queue_words(queue.name)} grows: {last:,} messages wait, {last - first:,} more than "
                f"{NEW_NODES} minutes ago.", "Add consumers, or find out what slows them down.", queue.id,
                queue=queue.name,
            )  # fmt: skip


def _dead_letters(state: BrokerState) -> Iterator[Problem]:
    for queue in state.overview.queues:
        dead = queue.counts.dead
        if dead and (dead > queue.sampled_dead or state.trends.get(queue.id, NO_TREND).died):
            letters = "a dead letter that" if dead == 1 else f"{dead:,} dead letters, and some"
            yield Problem(
                "dead", f"{queue_words(queue.name)} has {letters} came within the hour.",
                "Its page has the reasons. Put them back when the cause is gone.", queue.id, queue=queue.name,
                dead=True,
            )  # fmt: skip


def _etl(state: BrokerState) -> Iterator[Problem]:
    for kind, id, name, text in state.records:
        if kind == "schedule":
            yield Problem(
                "schedule", f"The ETL run “{name}” is late: it was due at {text}.",
                "Celery begins it: see that a worker and the beat run.", id,
            )  # fmt: skip
        elif kind == "run":
            yield Problem("run", f"The last ETL run {name}: {text or 'its log says why'}", "Its page has the log.", id)


def _idle(state: BrokerState) -> Iterator[Problem]:
    for kind, count, _, ends in state.records:
        if kind == "idle":
            what = "A subscription that nobody polls ends with its messages"
            if count > 1:
                what = f"{count:,} subscriptions that nobody polls end with their messages, the first of them"
            advice = "Poll those that are wanted, and delete the others."
            yield Problem("idle", f"{what} at {ends}.", advice, notice=True)


def _paused(state: BrokerState) -> Iterator[Problem]:
    for queue in _of_producers(state):
        if queue.paused and queue.counts.ready:
            text = f"{queue_words(queue.name)} is paused, and messages wait in it."
            yield Problem("paused", text, "Resume it when its consumers may go on.", queue.id, notice=True)
