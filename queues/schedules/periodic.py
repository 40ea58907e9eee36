"""Periodic jobs: the first process that looks publishes those that are due.

Any number of nodes may look at once. A due row is locked by one of them and skipped by the others, and its next run
is written in the transaction that publishes the job, so each run is published once. The clock is the database's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import DEFAULT_DB_ALIAS, Error, close_old_connections, connections, transaction
from django.db.models import Q
from django.db.models.functions import Now

from queues.api import publish
from queues.backoff import Backoff
from queues.errors import OperationError
from queues.models import Message, PeriodicJob, State
from queues.models.moment import MomentField
from queues.models.periodic import encode_payload
from queues.schedules import planning

logger = logging.getLogger(__name__)

#: Seconds between two looks, at most: a row changed without a notification is seen by then.
MAX_WAIT = 60.0
#: Seconds between two looks, at least: a due row may be in another node's hands for a moment.
SHORTEST_WAIT = 0.1
#: Waits before the next look while the database is away.
RETRY = Backoff(0.25, 10.0)
UNFINISHED = (State.READY, State.LEASED, State.DELAYED)


class QueueGone(OperationError):
    """The queue of a periodic job was deleted."""


class JobUnfinished(OperationError):
    """The job of the last run is unfinished, and there is to be one at a time."""


def run_due(using: str = DEFAULT_DB_ALIAS) -> float:
    """Publish a job for each periodic job that is due; returns the seconds until the next one is due, 0 to 60.

    Raises Django's database errors: then nothing was published.
    """
    with transaction.atomic(using=using):
        jobs = PeriodicJob.objects.using(using).select_related("queue")
        planning.run_due(jobs, lambda job: publish_job(job, using), "last_message_id")
        return _seconds_left(using)


def _seconds_left(using: str) -> float:
    planned = PeriodicJob.objects.using(using).filter(enabled=True, next_run_at__isnull=False)
    first = planned.order_by("next_run_at").annotate(now=Now(output_field=MomentField())).first()
    if first is None or first.next_run_at is None:
        return MAX_WAIT
    left: float = first.next_run_at.timestamp() - first.now.timestamp()
    return min(max(left, 0.0), MAX_WAIT)


def publish_job(job: PeriodicJob, using: str = DEFAULT_DB_ALIAS) -> int | None:
    """Publish a locked row's job; returns its id. Raises QueueGone, JobUnfinished and what `publish` does."""
    if job.queue is None:
        raise QueueGone("Its queue was deleted; choose another one.")
    if job.unique and (unfinished := _unfinished(job, using)) is not None:
        raise JobUnfinished(f"Skipped: message {unfinished}, the job of the run before, is unfinished.")
    return _publish(job, using)


def _unfinished(job: PeriodicJob, using: str) -> int | None:
    """The last run's job by its first id, if it waits in its queue or is being worked on. A dead letter does not."""
    last = job.last_message_id
    if last is None:
        return None
    found = Message.objects.using(using).filter(Q(pk=last) | Q(origin_id=last), queue=job.queue, state__in=UNFINISHED)
    return last if found.exists() else None


def _publish(job: PeriodicJob, using: str) -> int | None:
    """Publish one job to its queue; returns its id."""
    assert job.queue is not None
    return publish(
        f"queue:{job.queue.name}", encode_payload(job.payload), content_type="application/json",
        priority=job.priority, max_attempts=job.max_attempts, using=using,
    )  # fmt: skip


class Scheduler:
    """A thread that does due work until it is stopped, also after the database was away.

    `look` does it (None: `run_due`), and returns the seconds until the next look; `name` is for the log. The methods
    may be called from any thread, and none but `stop` waits.
    """

    def __init__(
        self, using: str = DEFAULT_DB_ALIAS, look: Callable[[str], float] | None = None, name: str = "periodic jobs"
    ) -> None:
        self.using = using
        self._look, self._name = look, name
        self._stopped = False
        self._woken = threading.Event()
        # A connection that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._look_for_ever, name=name, daemon=True)

    def start(self) -> None:
        """Begin; once for each scheduler."""
        self._thread.start()

    def wake(self) -> None:
        """Look again at once: a periodic job was added or changed."""
        self._woken.set()

    def stop(self, timeout: float = 5.0) -> bool:
        """Stop, and wait so many seconds for a transaction under way; whether the thread has ended."""
        self._stopped = True
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _look_for_ever(self) -> None:
        delays = RETRY.delays()
        try:
            while not self._stopped:
                self._woken.clear()
                try:
                    wait = max((self._look or run_due)(self.using), SHORTEST_WAIT)
                    delays = RETRY.delays()
                except Exception as error:
                    wait = next(delays)
                    self._complain(error, wait)
                finally:
                    close_old_connections()
                if not self._stopped:
                    self._woken.wait(wait)
        finally:
            connections.close_all()

    def _complain(self, error: Exception, wait: float) -> None:
        if isinstance(error, Error):
            logger.warning("%s wait for the database, next try in %.1f s: %s", self._name, wait, error)
        else:
            logger.exception("the look for due %s failed, next try in %.1f s", self._name, wait)
