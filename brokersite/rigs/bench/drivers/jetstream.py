"""NATS JetStream: a stream with file storage; a push consumer with explicit acknowledgements, shared by a group."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from brokersite.rigs.bench.columns import Records
from brokersite.rigs.bench.drivers import FanoutDriver
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import Login, Stream

#: The deliver group of a stream's consumers, and the name of the first one.
_GROUP: Final = "consumers"
CONSUMER: Final = "c0"


@dataclass(frozen=True)
class JetStream(FanoutDriver):
    """A stream on a subject of its name; `copies` consumers, each of which gets every message."""

    login: Login
    stream: str
    copies: int = 1

    def producer(self, index: int) -> NatsProducer:
        return NatsProducer(self, index)

    def consumer(self, index: int) -> NatsConsumer:
        return NatsConsumer(self, index % self.copies)


def publish(subject: str, message: bytes, reply: str = "") -> bytes:
    """A PUB."""
    return f"PUB {subject} {reply} {len(message)}\r\n".encode() + message + b"\r\n"


class NatsConnection(Stream):
    """A connection past CONNECT; `server` is what the server says of itself."""

    def __init__(self, login: Login) -> None:
        super().__init__(login.endpoint)
        self.server: dict[str, Any] = json.loads(self.until(b"\r\n").partition(b" ")[2])
        options = {"verbose": False, "pedantic": False} | (
            {"user": login.user, "pass": login.password} if login.user else {}
        )
        self.send(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        self.until_pong()

    def until(self, mark: bytes) -> bytes:
        """Everything up to and including `mark`."""
        while mark not in self.rest:
            self.read()
        return self.take(self.rest.index(mark) + len(mark))

    def until_pong(self) -> None:
        """Read to a PONG. Raises BenchError for an error."""
        while (line := self.until(b"\r\n")) != b"PONG\r\n":
            if line.startswith(b"-ERR"):
                raise BenchError(f"NATS at {self.endpoint} says {line.decode(errors='replace').strip()}")

    def api(self, what: str, config: dict[str, Any] | None = None) -> None:
        """A request of JetStream's API. Raises BenchError for an error."""
        inbox = f"_INBOX.{secrets.token_hex(8)}"
        request = json.dumps(config).encode() if config else b""
        self.send(f"SUB {inbox} 9\r\n".encode() + publish("$JS.API." + what, request, inbox))
        while (words := self.until(b"\r\n").split())[0] != b"MSG":
            if words[0] == b"PING":
                self.send(b"PONG\r\n")
            elif words[0] == b"-ERR":
                raise BenchError(f"NATS at {self.endpoint} says {b' '.join(words).decode(errors='replace')}")
        answer = json.loads(self.take(int(words[-1]) + 2))
        self.send(b"UNSUB 9\r\n")
        if "error" in answer:
            raise BenchError(f"JetStream at {self.endpoint} refuses {what}: {answer['error'].get('description')}")

    def create(self, driver: JetStream, most: int) -> None:
        """Make the stream and its consumers, which have at most so many messages unacknowledged."""
        retention = "workqueue" if driver.copies == 1 else "interest"
        stream = {"name": driver.stream, "subjects": [driver.stream], "storage": "file", "num_replicas": 1}
        self.api(f"STREAM.CREATE.{driver.stream}", stream | {"retention": retention})
        for copy in range(driver.copies):
            consumer = {
                "durable_name": f"c{copy}", "deliver_subject": f"to.{driver.stream}.{copy}", "deliver_group": _GROUP,
                "ack_policy": "explicit", "deliver_policy": "all", "max_ack_pending": most,
            }  # fmt: skip
            self.api(
                f"CONSUMER.DURABLE.CREATE.{driver.stream}.c{copy}", {"stream_name": driver.stream, "config": consumer}
            )


class NatsProducer(NatsConnection):
    """A PubAck confirms a message."""

    def __init__(self, driver: JetStream, index: int) -> None:
        super().__init__(driver.login)
        inbox = f"_INBOX.{secrets.token_hex(8)}"
        self.send(f"SUB {inbox} 1\r\n".encode())
        message = publish(driver.stream, bytes(8) + b"x" * (driver.size - 8), inbox)
        self._records = Records(message, len(message) - 2 - driver.size, driver.run, index)
        self._confirmed = 0

    def publish(self, first: int, count: int) -> None:
        self.send(self._records.take(first, count))

    def confirmed(self, wait: float) -> int:
        self.read_within(wait)
        end = self.rest.rfind(b"\n") + 1
        if not end:
            return self._confirmed
        lines = self.take(end)
        if b'"error"' in lines or b"-ERR" in lines:
            raise BenchError(f"NATS at {self.endpoint} says {lines[:300].decode(errors='replace')}")
        if b"\r\nPING\r\n" in lines or lines.startswith(b"PING"):
            self.send(b"PONG\r\n")
        self._confirmed += lines.count(b'"seq":')
        return self._confirmed


class NatsConsumer(NatsConnection):
    """Each message is acknowledged by an empty publish to its reply subject."""

    def __init__(self, driver: JetStream, copy: int) -> None:
        super().__init__(driver.login)
        self._message = re.compile(rb"MSG \S+ \S+ (\S+) \d+\r\n(.{8}).{%d}\r\n" % (driver.size - 8), re.DOTALL)
        self.send(f"SUB to.{driver.stream}.{copy} {_GROUP} 1\r\nPING\r\n".encode())
        self.until_pong()

    def receive(self, wait: float) -> bytes | bytearray:
        self.read_within(wait)
        if self.rest.startswith(b"PING\r\n"):
            self.take(6)
            self.send(b"PONG\r\n")
        found = list(self._message.finditer(self.rest))
        if not found:
            return b""
        self.send(b"".join([b"PUB %b 0\r\n\r\n" % match[1] for match in found]))
        column = b"".join([match[2] for match in found])
        del self.rest[: found[-1].end()]
        return column

    def ask(self, count: int) -> None:
        """It is pushed to."""

    def collect(self) -> bytes | bytearray | None:
        return self.receive(0.0)

    def settle(self) -> None:
        self.send(b"PING\r\n")
        self.until_pong()
