"""Real Celery workers."""

from __future__ import annotations

import sys
from typing import Any

from tests.process import Process


class CeleryWorker(Process):
    """`celery worker` as a process."""

    def __init__(self, app: str, name: str, *options: str, **environment: Any) -> None:
        self.name = f"{name}@here"
        super().__init__(
            sys.executable, "-W", "ignore", "-m", "celery", "-A", app, "worker", "-l", "info", "-n", self.name,
            *options, environment=environment, merged=True, group=True,
        )  # fmt: skip

    @property
    def ready(self) -> bool:
        """Whether it has said so."""
        return "ready." in self.log
