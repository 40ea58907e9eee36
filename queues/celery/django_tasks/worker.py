"""A worker: takes messages of some queues from the engine and runs their tasks in threads."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

from django.db import DatabaseError, close_old_connections, connections
from django.utils import timezone
from psycopg.conninfo import make_conninfo

from queues.celery.consumers.channel_consumer import QueueConsumer, Received, acknowledge
from queues.celery.consumers.engine_thread import open_channel
from queues.celery.consumers.inbox import Inbox
from queues.celery.django_tasks.running import Ending, run_task
from queues.config.settings import settings
from queues.database.parameters import engine_parameters
from queues.engine.api import Deliveries, QueueNotFound, StoreUnavailable
from queues.models import TaskRun

logger = logging.getLogger(__name__)

#: Seconds between checks for new queues and for `stop`.
LOOK = 0.5
#: Seconds between removals of old results.
TIDY = 3600.0


class TaskWorker:
    """Runs the tasks of some queues, `concurrency` at a time, until `stop`."""

    def __init__(self, queues: list[str], concurrency: int, using: str) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._using = using
        self._missing = list(queues)
        self._inbox = Inbox()
        self._stopping = threading.Event()
        self._lost = threading.Event()
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="task")
        self._engine, self._channel_consumer = open_channel(
            make_conninfo(**engine_parameters(using)), self._inbox.put, self._lost.set, "runtasks"
        )
        self._engine.call(self._channel_consumer.set_prefetch, concurrency)
        self._consumers: list[QueueConsumer] = []
        self._tidied_at = 0.0

    def stop(self) -> None:
        """Take nothing more; what runs is finished. Signal handlers may call it."""
        self._stopping.set()

    def run(self) -> None:
        """Work until `stop`, and then until what has begun has ended. Raises RuntimeError when the engine ended."""
        try:
            while not self._stopping.is_set():
                if self._lost.is_set():
                    raise RuntimeError("the engine's thread has ended: the log says why")
                self._look_after()
                select.select([self._inbox], [], [], LOOK)
                self._take()
        finally:
            self._leave()

    def _take(self) -> None:
        while (received := self._inbox.get()) is not None:
            if self._stopping.is_set():
                received.settle(Deliveries.hand_back)
            else:
                self._threads.submit(self._work, received)

    def _leave(self) -> None:
        for consumer in self._consumers:
            self._engine.call(self._channel_consumer.remove, consumer)
        self._take()
        self._threads.shutdown(wait=True)
        self._take()
        self._engine.stop()
        self._inbox.close()

    def _look_after(self) -> None:
        for name in tuple(self._missing):
            consumer = QueueConsumer(self._channel_consumer, name, name)
            try:
                self._engine.consume(self._channel_consumer, consumer)
            except QueueNotFound:
                continue
            except (StoreUnavailable, TimeoutError):  # the database is away: the others are not there either
                break
            self._missing.remove(name)
            self._consumers.append(consumer)
        if time.monotonic() - self._tidied_at > TIDY:
            self._tidied_at = time.monotonic()
            old = timezone.now() - timedelta(days=settings.BROKER_ARCHIVE_DAYS)
            try:
                TaskRun.objects.using(self._using).filter(finished_at__lt=old).delete()
            except DatabaseError as error:
                logger.warning("ended tasks are not removed now: %s", str(error).strip().split("\n")[0])
                close_old_connections()

    # In a thread of the pool.

    def _work(self, received: Received) -> None:
        _, _, _, attempts, detail = received.push
        id = (detail.key if detail is not None else None) or ""
        limit = None if detail is None else detail.max_attempts
        last = received.buffer.policy.exhausted(attempts + 1, limit)
        try:
            ending, why = run_task(id, self.name, last, self._using)
        except Exception:
            logger.exception("the database is away: the task %s goes back to its queue", id)
            received.settle(Deliveries.hand_back)
            return
        finally:
            if self._stopping.is_set():
                connections.close_all()
        received.settle(acknowledge if ending is Ending.DONE else partial(Deliveries.give_back, error=why))
