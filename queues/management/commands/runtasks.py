"""`manage.py runtasks`: run the tasks of Django's tasks framework."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from queues.config import extras
from queues.errors import BrokerError
from queues.management.shell import database_in_words

if TYPE_CHECKING:
    from queues.celery.django_tasks.backend import FivewireBackend


class Command(BaseCommand):
    help = "Run the tasks of Django's tasks framework until SIGTERM or SIGINT; tasks that run are finished first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="the alias in TASKS")
        parser.add_argument("--queues", help="some of its queues, with commas between them; default: all")
        parser.add_argument("--concurrency", type=int, default=4, help="tasks at a time, in threads; default 4")

    def handle(self, *args: Any, **options: Any) -> None:
        if problem := extras.problem("tasks"):
            raise CommandError(problem)
        from queues.celery.django_tasks.worker import TaskWorker

        backend = self._backend(options["backend"])
        queues = options["queues"].split(",") if options["queues"] else sorted(backend.queues)
        if unknown := sorted(set(queues) - backend.queues):
            raise CommandError(f"The backend has no queue {', '.join(map(repr, unknown))}.")
        if options["concurrency"] < 1:
            raise CommandError("--concurrency must be 1 or more.")
        try:
            with database_in_words():
                worker = TaskWorker(queues, options["concurrency"], backend.database)
        except BrokerError as error:
            raise CommandError(str(error)) from error
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: worker.stop())
        self.stdout.write(f"running tasks of {', '.join(queues)}")
        self.stdout.flush()
        worker.run()

    def _backend(self, alias: str) -> FivewireBackend:
        from queues.celery.django_tasks.backend import FivewireBackend
        from queues.celery.django_tasks.framework import InvalidTaskBackend, task_backends

        try:
            backend = task_backends[alias]
        except InvalidTaskBackend as error:
            raise CommandError(str(error)) from error
        if not isinstance(backend, FivewireBackend):
            raise CommandError(f"TASKS[{alias!r}] is not Fivewire's backend.")
        return backend
