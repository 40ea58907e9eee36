"""The project's Celery application: ``celery -A brokersite worker -B``. Its broker is Fivewire's own store.

Tasks of installed applications are in their `tasks` modules. A task published inside ``transaction.atomic()`` is
delivered if and when that commits.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from celery import Celery
from celery.platforms import SecurityWarning
from celery.signals import beat_init, worker_init
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
_ = settings.INSTALLED_APPS  # loads them, which names their faults and those of the packages

import queues.celery.transport  # noqa: E402, F401 - makes fivewire:// known
from queues.celery import beat  # noqa: E402

# Celery warns of workers that root runs, since messages might bring code to be run; these are JSON.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("brokersite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.beat_schedule = beat.schedule() | beat.entries({"brokersite.forget_old": 3600.0})
app.autodiscover_tasks()


@worker_init.connect  # type: ignore[untyped-decorator]
@beat_init.connect  # type: ignore[untyped-decorator]
def make_queue(**signal: Any) -> None:
    """Make the project's own queue, unless there is one: of its messages, one every few seconds, nothing is kept."""
    from django.db import connection

    from queues.models import Retention
    from queues.operations.queues import QueueExists, create_queue

    try:
        create_queue(
            settings.CELERY_TASK_DEFAULT_QUEUE, max_attempts=0, retry_backoff=0, ack_timeout=None,
            retention=Retention.NONE, by="celery",
        )  # fmt: skip
    except QueueExists:
        pass
    finally:
        connection.close()
