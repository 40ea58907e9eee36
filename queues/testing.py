"""What the tests of a project ask the broker: which messages and tasks were published.

docs/testing.md shows them with Django's test cases (`BrokerMixin`) and with pytest (the fixture `broker` of
``queues.pytest_plugin``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from queues.engine.api import QueueNotFound
from queues.models import Content, Message, Queue

__all__ = ["Broker", "BrokerMixin", "Published", "Task"]


@dataclass(frozen=True, slots=True)
class Published:
    """A message that waits in a queue."""

    body: bytes
    headers: Mapping[str, Any]
    key: str | None
    priority: int
    delayed: bool


@dataclass(frozen=True, slots=True)
class Task:
    """A task that waits for a Celery worker, written by Celery's serializer `json`."""

    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Broker:
    """The broker in a test database."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        self._using = using

    def queue(self, name: str, **policy: Any) -> Queue:
        """Make a queue; `policy` has fields of the model."""
        return Queue.objects.using(self._using).create(name=name, **policy)

    def messages(self, queue: str) -> list[Published]:
        """The messages of a queue that no consumer has taken, in the order of their delivery. Raises QueueNotFound."""
        return [
            Published(bytes(row.payload), row.headers or {}, row.key, -(row.pk >> 56), row.due_at is not None)
            for row in self._rows(queue)
        ]

    def tasks(self, queue: str = "celery") -> list[Task]:
        """The Celery tasks of a queue that no worker has taken; none if there is no such queue."""
        try:
            rows = [row for row in self._rows(queue) if row.content == Content.CELERY]
        except QueueNotFound:
            return []
        bodies = (json.loads(bytes(row.payload)) for row in rows)
        return [Task((row.headers or {})["task"], *body[:2]) for row, body in zip(rows, bodies, strict=True)]

    def _rows(self, queue: str) -> list[Message]:
        try:
            found = Queue.objects.using(self._using).get(name=queue)
        except Queue.DoesNotExist:
            raise QueueNotFound(queue) from None
        return list(Message.objects.using(self._using).filter(queue=found, node=None).order_by("pk"))


class BrokerMixin:
    """For a test case of Django's: `self.broker`, and `queues` that are made before each test."""

    queues: Sequence[str] = ()

    @cached_property
    def broker(self) -> Broker:
        return Broker()

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        for name in self.queues:
            self.broker.queue(name)
