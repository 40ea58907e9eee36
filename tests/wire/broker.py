"""A running broker for tests: `manage.py runwire` as a process, a database of its own, raw sockets to speak to it."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode

import psycopg
from django.conf import settings
from psycopg import sql

from queues.database.parameters import connection_parameters
from queues.engine.access import key_digest
from tests.process import Process
from tests.tables import altering
from tests.waiting import PATIENCE, wait_until
from wire.blipmq import codec as blipmq
from wire.sspq import codec as sspq

KEY = "dev-key"
"""The API key that every test database has; it may do everything."""

READY, LEASED, DELAYED, DEAD = range(4)

EVERY_LISTENER = ("--overhop", "127.0.0.1:0", "--blipmq", "127.0.0.1:0", "--sspq", "127.0.0.1:0")

#: Settings of brokers unless a test gives others: a consumer that stands still with a BlipMQ message in its
#: hand is not to get it again.
ENVIRONMENT = {"BROKER_BLIPMQ_RETRY_BACKOFF": "30"}

Address = tuple[str, int]


class Database:
    """A migrated database, through a connection of the test's own that sees what is committed."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.parameters = parameters
        self.connection = psycopg.connect(**parameters, autocommit=True)

    @property
    def url(self) -> str:
        """DATABASE_URL for a process."""
        return make_url(self.parameters)

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.connection.execute(query.encode(), parameters).fetchall()

    def value(self, query: str, *parameters: Any) -> Any:
        """The first column of the only row of a query."""
        ((value,),) = self.rows(query, *parameters)
        return value

    def execute(self, statement: str, *parameters: Any) -> None:
        """Run and commit a statement."""
        self.connection.execute(statement.encode(), parameters)

    def add_key(
        self, key: str, publish: tuple[str, ...] = ("*",), consume: tuple[str, ...] = ("*",), protocol: str = ""
    ) -> str:
        """Make an API key named as its value; without `protocol` it is good for any."""
        self.execute(
            "insert into queues_apikey (name, digest, hint, protocols, publish, consume, manage)"
            " values (%s, %s, '', %s, %s, %s, '{}')",
            key,
            key_digest(key, settings.SECRET_KEY),
            [protocol] if protocol else [],
            list(publish),
            list(consume),
        )
        return key

    def queue_of(self, subscription: int) -> int:
        """The id of a subscription's queue."""
        return int(self.value("select queue_id from queues_subscription where id = %s", subscription))

    def queue(self, name: str) -> int:
        """The id of a queue."""
        return int(self.value("select id from queues_queue where name = %s", name))

    def change_queue(self, queue: int, **columns: Any) -> None:
        """Change a queue's policy as an operator does; running nodes hear of it."""
        names = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in columns)
        statement = sql.SQL("update queues_queue set {} where id = %s").format(names)
        self.connection.execute(statement, (*columns.values(), queue))

    def states(self, queue: int) -> Counter[int]:
        """A queue's messages, counted by state."""
        rows = self.rows("select state, count(*) from queues_openmessage where queue_id = %s group by state", queue)
        return Counter(dict(rows))

    def payloads(self, queue: int) -> list[bytes]:
        """The payloads in a queue, in order."""
        rows = self.rows("select payload from queues_openmessage where queue_id = %s order by id", queue)
        return [bytes(payload) for (payload,) in rows]

    def wait_for_states(self, queue: int, **counts: int) -> None:
        """Wait until a queue has exactly these: `ready`, `leased`, `delayed`, `dead`."""
        names = ("ready", "leased", "delayed", "dead")
        wanted = Counter({names.index(name): count for name, count in counts.items() if count})
        wait_until(lambda: self.states(queue) == wanted, lambda: f"{counts} (now {dict(self.states(queue))})")

    def wait_until_obeyed(self, *brokers: Broker) -> None:
        """Wait until brokers obey all that was changed in queues so far: they read them anew in the order of the
        changes, and this one can be seen from outside. The queue `sspq` must be empty and have no consumer."""
        queue = self.queue("sspq")
        self.change_queue(queue, paused=True, refuse_when_paused=True)
        for broker in brokers:
            with Sspq(broker.sspq) as probe:
                assert probe.receive() == NO_RECEIVE
        self.change_queue(queue, paused=False, refuse_when_paused=False)
        for broker in brokers:
            with Sspq(broker.sspq) as probe:
                put(broker.sspq, b"probe")
                probe.receive_message()
                probe.confirm()
                probe.hang_up()
        self.wait_for_states(queue)

    @contextlib.contextmanager
    def unwritable_messages(self) -> Iterator[None]:
        """Within it no transaction can change a message: every commit of the broker waits."""
        with psycopg.connect(**self.parameters) as blocker:
            # The counts, which change with each message. One table: locks of several may end in a deadlock.
            blocker.execute("lock table only queues_queuetally in share mode")
            yield
            blocker.rollback()

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Within it the database takes no new connection; open ones stay."""
        name = sql.Identifier(self.parameters["dbname"])
        with psycopg.connect(**connection_parameters(), autocommit=True) as server:
            server.execute(sql.SQL("alter database {} allow_connections false").format(name))
            try:
                yield
            finally:
                server.execute(sql.SQL("alter database {} allow_connections true").format(name))

    @contextlib.contextmanager
    def refusing(self, payload: bytes) -> Iterator[None]:
        """Within it PostgreSQL refuses to store a message with exactly this payload."""
        self.execute(
            "create or replace function refuse_payload() returns trigger language plpgsql as $$ begin"
            " raise exception 'this payload is refused' using errcode = 'data_exception'; end $$"
        )
        condition = f"convert_from(new.payload, 'LATIN1') = '{payload.decode()}'"
        self.execute(
            "create trigger refuse before insert on queues_message for each row"
            f" when ({condition}) execute function refuse_payload()"
        )
        self.execute(
            "create trigger refuse before insert on queues_segment for each row"
            f" when ('\\x{payload.hex()}' = any(new.bodies)) execute function refuse_payload()"
        )
        try:
            yield
        finally:
            for table in ("queues_message", "queues_segment"):
                self.execute(altering(table, f"drop trigger refuse on {table}"))

    def wait_for_blocked(self, query: str) -> None:
        """Wait until a statement waits for a lock that has these words in its first 1023 bytes: the server's views show
        no more of it."""
        words = f"%{query}%"
        wait_until(
            lambda: self.value(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ilike %s"
                " and datname = current_database()",
                words,
            ),
            f"a blocked {query!r}",
        )

    def close(self) -> None:
        self.connection.close()


def make_url(parameters: dict[str, Any]) -> str:
    """A PostgreSQL URI from libpq's parameters."""
    return "postgresql://?" + urlencode(parameters, quote_via=quote)


class Broker(Process):
    """A `manage.py runwire`. Its listeners are on free ports; `addresses` has them by name, once it is ready."""

    def __init__(
        self, database: Database | str, *arguments: str, inside: Any = (), **environment: Any
    ) -> None:
        """`arguments` come after those that open each listener on a free port; `environment` overrides settings.
        `inside` is the words of a command that runs this one elsewhere, as in a network namespace."""
        self.url = database if isinstance(database, str) else database.url
        self.arguments = (*EVERY_LISTENER, *arguments)
        self.environment = ENVIRONMENT | {name: str(value) for name, value in environment.items()}
        self.addresses: dict[str, Address] = {}
        super().__init__(
            *inside, sys.executable, "manage.py", "runwire", *self.arguments,
            environment={"DATABASE_URL": self.url, "SECRET_KEY": settings.SECRET_KEY, **self.environment},
        )  # fmt: skip

    def note(self, line: str) -> None:
        name, _, address = line.removeprefix("[0] ").rpartition(" ")
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit():
            self.addresses.setdefault(name, (host, int(port)))

    @property
    def overhop(self) -> Address:
        return self.addresses["overhop"]

    @property
    def blipmq(self) -> Address:
        return self.addresses["blipmq"]

    @property
    def sspq(self) -> Address:
        return self.addresses["sspq"]

    def restarted(self) -> Broker:
        """Stop it, and start another like it."""
        assert self.stop() == 0, self.log
        return Broker(self.url, *self.arguments[len(EVERY_LISTENER) :], **self.environment).wait_ready()


def run_wire(database: Database | str, *arguments: str, **environment: Any) -> tuple[int, str]:
    """Run a runwire that is to end by itself; its exit status and standard error."""
    broker = Broker(database, *arguments, **environment)
    status = broker.wait()
    return status, broker.log


class Raw:
    """A TCP connection and what has arrived on it and was not taken yet."""

    def __init__(self, address: Address, wrap: Callable[[socket.socket], socket.socket] = lambda raw: raw) -> None:
        raw = socket.create_connection(address, PATIENCE)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = wrap(raw)
        self.received = b""

    def send(self, *data: bytes) -> None:
        """Send all in one packet."""
        self.socket.sendall(b"".join(data))

    def take(self, size: int) -> bytes:
        """The next bytes."""
        while len(self.received) < size:
            data = self.socket.recv(1 << 20)
            assert data, f"the broker closed the connection after {self.received!r}"
            self.received += data
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    def is_silent(self, seconds: float = 0.15) -> bool:
        """Whether nothing arrives for so long."""
        if self.received:
            return False
        self.socket.settimeout(seconds)
        try:
            self.received += self.socket.recv(1 << 20)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE)
        return False

    def rest(self) -> bytes:
        """Everything until the broker's end of the connection, be it a reset."""
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(1 << 20):
                self.received += data
        rest, self.received = self.received, b""
        return rest

    def end_of_input(self) -> None:
        """Send nothing more; the broker sees the end of the stream."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Frame(NamedTuple):
    """A BlipMQ frame from the broker."""

    kind: int
    cid: int
    payload: bytes = b""

    @property
    def subscription(self) -> int:
        """The id in an ACK."""
        assert self.kind == blipmq.ACK, self
        return int.from_bytes(self.payload, "big")

    @property
    def qos(self) -> int:
        """The QoS of a delivery."""
        assert self.kind == blipmq.PUBLISH, self
        return self.payload[0]

    @property
    def topic(self) -> bytes:
        """The topic of a delivery."""
        assert self.kind == blipmq.PUBLISH, self
        return self.payload[3 : 3 + int.from_bytes(self.payload[1:3], "big")]

    @property
    def body(self) -> bytes:
        """The body of a delivery."""
        return self.payload[3 + len(self.topic) :]


def nack(cid: int, code: int, message: str) -> Frame:
    """The NACK with these."""
    text = message.encode()
    return Frame(blipmq.NACK, cid, struct.pack(">HH", code, len(text)) + text)


class Blip(Raw):
    """A BlipMQ connection, authenticated unless `key` is empty."""

    def __init__(self, address: Address, key: str = KEY, **options: Any) -> None:
        super().__init__(address, **options)
        self._ping = 1 << 40
        if key:
            self.send(blipmq.encode_hello(1), blipmq.encode_auth(2, key))
            assert self.read() == Frame(blipmq.ACK, 1, bytes(8))
            assert self.read() == Frame(blipmq.ACK, 2, bytes(8))

    def read(self) -> Frame:
        """The next frame."""
        length, kind, cid = struct.unpack(">IBQ", self.take(13))
        return Frame(kind, cid, self.take(length - 9))

    def ask(self, *data: bytes) -> list[Frame]:
        """Send frames and a PING; all that comes before its PONG."""
        self._ping += 1
        self.send(*data, blipmq.encode_ping(self._ping))
        frames: list[Frame] = []
        while (frame := self.read()).cid != self._ping:
            frames.append(frame)
        assert frame == Frame(blipmq.PONG, self._ping), frame
        return frames

    def subscribe(self, topic: bytes, qos: int = 1) -> int:
        """Subscribe; the id."""
        (answer,) = self.ask(blipmq.encode_subscribe(7, topic, qos))
        assert answer.cid == 7
        return answer.subscription

    def publish(self, topic: bytes, *bodies: bytes, qos: int = 1) -> None:
        """Publish and wait until it is durable."""
        assert self.ask(*(blipmq.encode_publish(8, qos, topic, body) for body in bodies)) == []

    def poll(self, subscription: int, cid: int = 9) -> Frame | None:
        """One POLL: a delivery or None."""
        frames = self.ask(blipmq.encode_poll(cid, subscription))
        assert len(frames) <= 1, frames
        return frames[0] if frames else None

    def next(self, subscription: int, cid: int = 9) -> Frame:
        """POLL until there is a delivery: one POLL may find none, when the store is slow."""
        delivery: Frame = wait_until(lambda: self.poll(subscription, cid), "a delivery")
        return delivery

    def ack(self, tag: int, subscription: int) -> None:
        """Acknowledge, and have it taken without a NACK."""
        assert self.ask(blipmq.encode_ack(tag, subscription)) == []

    def consume(self, subscription: int, count: int) -> list[bytes]:
        """POLL and acknowledge so many messages; their bodies."""
        bodies = []
        for _ in range(count):
            delivery = self.next(subscription)
            bodies.append(delivery.body)
            self.send(blipmq.encode_ack(delivery.cid, subscription))
        assert self.ask() == []
        return bodies


class Packet(NamedTuple):
    """An SSPQ packet from the broker."""

    kind: int
    retries: int
    payload: bytes = b""


NO_RECEIVE = Packet(sspq.NO_RECEIVE, 0)


def message(payload: bytes, retries: int) -> Packet:
    """The SEND that delivers this."""
    return Packet(sspq.SEND, retries, payload)


class Sspq(Raw):
    """An SSPQ connection."""

    def read(self) -> Packet:
        """The next packet."""
        magic, kind, retries, size = struct.unpack(">HBBI", self.take(8))
        assert magic == 0x5599
        return Packet(kind, retries, self.take(size))

    def receive(self) -> Packet:
        """RECEIVE and its answer."""
        self.send(sspq.RECEIVE_PACKET)
        return self.read()

    def receive_message(self) -> Packet:
        """RECEIVE until it is not refused: a broker may not have heard yet that a pause is over."""
        packet: Packet = wait_until(lambda: (answer := self.receive()) != NO_RECEIVE and answer, "a message")
        return packet

    def dead_receive(self) -> Packet:
        """DEAD_RECEIVE and its answer."""
        self.send(sspq.DEAD_RECEIVE_PACKET)
        return self.read()

    def confirm(self) -> None:
        self.send(sspq.CONFIRM_PACKET)

    def hang_up(self) -> None:
        """Close, and wait until the broker has noticed."""
        self.end_of_input()
        self.rest()
        self.close()


def put(address: Address, *payloads: bytes, retries: int = 3) -> None:
    """Connect, SEND, close at once: all is taken."""
    with Sspq(address) as client:
        client.send(*(sspq.encode_send(payload, retries) for payload in payloads))
        client.hang_up()


def _dropped(connection: psycopg.Connection, statement: sql.Composed) -> bool:
    """Whether it could be dropped: one that autovacuum is at work in cannot be by a role that is no superuser."""
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def drop_databases(parameters: dict[str, Any], *names: str) -> None:
    """Drop databases, with their connections."""
    with psycopg.connect(**parameters, autocommit=True) as connection:
        for name in names:
            statement = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            wait_until(lambda: _dropped(connection, statement), f"the end of {name}")  # noqa: B023 - called at once


def create_database(parameters: dict[str, Any], name: str, template: str | None = None) -> dict[str, Any]:
    """Create a database, perhaps as a copy; the parameters to connect to it."""
    with psycopg.connect(**parameters, autocommit=True) as connection:
        like = sql.SQL(" template {}").format(sql.Identifier(template)) if template else sql.SQL("")
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)) + like)
    return parameters | {"dbname": name}


def migrate(parameters: dict[str, Any]) -> None:
    """Apply every migration to a database, in a process of its own."""
    status, _, log = Process(
        sys.executable, "manage.py", "migrate", "--verbosity=0", environment={"DATABASE_URL": make_url(parameters)}
    ).finish()
    assert status == 0, log
