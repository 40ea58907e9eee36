"""The Celery worker that `manage.py up` runs, with the beat inside: how it is started, and whether it answers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import suppress

from django.conf import settings
from django.db import connections
from kombu.exceptions import KombuError, OperationalError

from brokersite.celery import app
from brokersite.supervisor import Program

#: Seconds that an answer may take, and between two questions that could not be asked.
TIMEOUT, PAUSE = 2.0, 0.2


def name() -> str:
    """The name of this process's worker; another `up` on the same database has another one."""
    return f"up-{os.getpid()}@{socket.gethostname()}"


def program() -> Program:
    """The worker. Upon SIGQUIT it waits for no task: each is done again, whole, by the next worker."""
    arguments = ["celery", "-A", "brokersite", "worker", "-B", "-l", "warning", "-n", name()]
    return Program("celery", arguments, answers=_until_it_answers, ending=signal.SIGQUIT)


def description() -> str:
    """The worker in words."""
    tasks = settings.CELERY_WORKER_CONCURRENCY
    return f"worker {name()}, {tasks} task{'' if tasks == 1 else 's'} at a time, with the beat"


async def _until_it_answers() -> None:
    while not await asyncio.to_thread(_answers):
        pass  # it was given time to answer


def _answers() -> bool:
    try:
        with suppress(KombuError, OperationalError, OSError), app.connection_for_write() as connection:
            return bool(app.control.ping(destination=[name()], timeout=TIMEOUT, connection=connection))
        time.sleep(PAUSE)
        return False
    finally:
        connections.close_all()
