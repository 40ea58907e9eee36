"""Helpers of the transport's tests: reads of tables, and a consumer that keeps its messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.message import Message
from kombu.messaging import Consumer
from psycopg.rows import dict_row

from queues.database.parameters import connection_parameters
from tests.waiting import PATIENCE


class Tables:
    """The store, seen from another connection."""

    def __init__(self) -> None:
        self.connection = psycopg.connect(**connection_parameters(), autocommit=True, row_factory=dict_row)

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        return self.connection.execute(sql.encode(), parameters).fetchall()

    def messages(self, queue: str) -> list[dict[str, Any]]:
        return self.rows(
            "select m.* from queues_message m join queues_queue q on q.id = queue_id where q.name = %s order by m.id",
            queue,
        )

    def archived(self, queue: str) -> list[dict[str, Any]]:
        return self.rows(
            "select a.* from queues_archive a join queues_queue q on q.id = queue_id where q.name = %s", queue
        )

    def queues(self) -> list[str]:
        return [row["name"] for row in self.rows("select name from queues_queue order by name")]

    def held(self, queue: str) -> tuple[int, int, int, int]:
        row = self.rows("select h.* from queues_queue q, queues_held(q.id) h where q.name = %s", queue)[0]
        return row["ready"], row["leased"], row["delayed"], row["dead"]

    def cut(self) -> None:
        """Terminate every session of the transport and its engines; they are gone when it returns.

        A session that is still about to end would store the next message and not answer, so that it comes twice.
        """
        self.rows(
            "select pg_terminate_backend(pid, 60000) from pg_stat_activity where application_name like 'fivewire%%'"
            " and datname = current_database()"
        )


class Got:
    """A consumer of some queues, on a channel of its own, that keeps what it gets."""

    def __init__(
        self, connection: Connection, queues: Sequence[Queue], prefetch: int = 0, no_ack: bool = False
    ) -> None:
        self.connection = connection
        self.messages: list[Message] = []
        self.channel = connection.channel()
        if prefetch:
            self.channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(
            self.channel, queues, no_ack=no_ack, on_message=self.messages.append, accept=["json", "text/plain"]
        )
        self.consumer.consume()

    def wait(self, count: int, patience: float = PATIENCE) -> list[Message]:
        """Wait until so many have come, all in all."""
        deadline = time.monotonic() + patience
        while len(self.messages) < count:
            left = deadline - time.monotonic()
            assert left > 0, f"{len(self.messages)} of {count} messages came"
            try:
                self.connection.drain_events(timeout=left)
            except TimeoutError:
                continue
        return self.messages

    def nothing_more(self, patience: float = 0.3) -> bool:
        """Whether no further message comes in this time."""
        count = len(self.messages)
        try:
            self.wait(count + 1, patience)
        except AssertionError:
            return True
        return False

    def bodies(self, count: int) -> list[Any]:
        return [message.payload for message in self.wait(count)]
