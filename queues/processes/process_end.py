"""The end of a process, whichever it is: by itself, after `os.fork`, as a child of multiprocessing or of billiard.

Children of multiprocessing and billiard end without `atexit`; both packages have finalizers, which a child loses when
it begins. Celery's children end without these too, and send a signal. A process that is killed, or ends by `os._exit`,
has no end.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class Closing(Protocol):
    """A resource that holds what is to be sent."""

    def close_at_end(self) -> None:
        """Send what is held, and close."""


#: Open resources, each with the process that opened it: to a child its parent's are nothing.
_open: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_prepared = 0


def watch(resource: Closing) -> None:
    """Have a resource closed when this process ends, as long as anything else refers to it."""
    _open[resource] = os.getpid()
    _prepare()


def forget(resource: Closing) -> None:
    """The resource is closed."""
    _open.pop(resource, None)


def _prepare() -> None:
    global _prepared
    if _prepared == os.getpid():
        return
    _prepared = os.getpid()
    for name in ("multiprocessing.util", "billiard.util"):
        if (module := sys.modules.get(name)) is not None:
            module.Finalize(None, close_all, exitpriority=0)
    if (signals := sys.modules.get("celery.signals")) is not None:
        signals.worker_process_shutdown.connect(_in_worker, weak=False, dispatch_uid=__name__)


def _in_worker(**_: Any) -> None:
    close_all()


@atexit.register
def close_all() -> None:
    """Close what this process has opened. What fails is told by the log."""
    for resource, pid in tuple(_open.items()):
        if pid == os.getpid():
            forget(resource)
            try:
                resource.close_at_end()
            except Exception as error:
                logger.error("%s was not closed in order: %s", type(resource).__name__, error)
