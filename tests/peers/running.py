"""Real brokers for tests of peerbus: web servers as processes, peers that see every byte, and what the store has."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, cast

import psutil
import pytest
from django.conf import settings
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from queues.audit.events import GENESIS, AuditEvent, hash_after
from tests.peers.web.serving import CLOSE, TEXT, Raw, frame
from tests.process import Process
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import KEY, Database

DELIVER = re.compile(
    rb'\{"protocol_version":"v1","type":"deliver","delivery_key":("(?:[^"\\]|\\.)+"),"envelope":(.*)\}', re.DOTALL
)

_numbers = itertools.count(1)


def home(url: str) -> str:
    """A data directory for one database: copies of its audit anchors are no other's."""
    return str(Path(settings.DATA_DIR) / "of" / hashlib.sha256(url.encode()).hexdigest()[:16])


class WebBroker(Process):
    """A process of a web server with the project's own application, on a port of 127.0.0.1."""

    SERVERS: ClassVar = {
        "daphne": ["daphne", "-b", "127.0.0.1"],
        "uvicorn": ["uvicorn", "--host", "127.0.0.1", "--no-access-log"],
    }

    context = None  # it does not speak TLS

    def __init__(
        self, database: Database | str, *, server: str = "daphne", port: int = 0, **environment: Any
    ) -> None:
        """`environment` overrides settings. With a port another one like it can follow on the same address."""
        self.server = server
        self.url = database if isinstance(database, str) else database.url
        self.environment = {name: str(value) for name, value in environment.items()}
        self.address: tuple[str, int] = ("127.0.0.1", port)
        super().__init__(
            sys.executable, "-m", *self.SERVERS[server], "--port", str(port), "brokersite.asgi:application",
            environment={
                "DATABASE_URL": self.url, "DATA_DIR": home(self.url), "SECRET_KEY": settings.SECRET_KEY,
                **self.environment,
            },
        )  # fmt: skip

    def uri(self, path: str = "/ws/peerbus") -> str:
        return f"ws://{self.address[0]}:{self.address[1]}{path}"

    @property
    def ready(self) -> bool:
        """Whether it accepts connections."""
        return self.alive and self._listens()

    def wait_ready(self) -> Self:
        """Wait until it accepts connections. Raises AssertionError, after its end, with its log."""
        wait_until(lambda: self.ready or not self.alive, lambda: self.log)
        return super().wait_ready()

    def _listens(self) -> bool:
        for connection in psutil.Process(self.process.pid).net_connections("tcp4"):
            if connection.status == psutil.CONN_LISTEN:
                self.address = (str(connection.laddr[0]), int(connection.laddr[1]))
                return True
        return False

    def killed(self) -> WebBroker:
        """Kill it with -9, and start another on the same port."""
        self.kill()
        return WebBroker(self.url, server=self.server, port=self.address[1], **self.environment).wait_ready()

    def connect(self, path: str = "/ws/peerbus", **options: Any) -> ClientConnection:
        """A client of the websockets package."""
        given = {
            "compression": None, "max_size": None, "max_queue": None, "ping_interval": None,
            "open_timeout": PATIENCE, "close_timeout": PATIENCE,
        } | options  # fmt: skip
        return connect(self.uri(path), **given)


def compact(value: Any) -> bytes:
    """JSON without whitespace."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def register(name: str, token: str = KEY, /, **changed: Any) -> bytes:
    """A register frame; a field `changed` to None is absent."""
    fields = {"protocol_version": "v1", "type": "register", "token": token, "name": name} | changed
    return compact({field: value for field, value in fields.items() if value is not None})


def ack(key: str) -> bytes:
    return compact({"protocol_version": "v1", "type": "ack", "id": key})


PEERS = b'{"protocol_version":"v1","type":"peers"}'


def unique(word: str = "m") -> str:
    """An id or name that no other test has."""
    return f"{word}-{next(_numbers)}"


def envelope(to: str, id: str, sender: str = "another", body: Any = None, **changed: Any) -> bytes:
    """An envelope; its signature is of the right form only, which is all that concerns the broker."""
    fields = {
        "protocol_version": "v1", "id": id, "from": sender, "to": to, "ts": "2026-05-18T12:00:00Z",
        "source": "peer-bus", "kind": "broadcast" if to == "*" else "msg", "body": body, "hmac": "0" * 64,
    } | changed  # fmt: skip
    return compact({field: value for field, value in fields.items() if value is not ...})


class Letter(NamedTuple):
    """A delivery: the key it is acknowledged by, and the envelope as it came."""

    key: str
    text: bytes

    @property
    def fields(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.text)
        return value

    @property
    def id(self) -> str:
        return str(self.fields["id"])


class Close(NamedTuple):
    """The close frame of a connection."""

    code: int
    reason: str


TAKEN_OVER = Close(1008, "taken over by a new connection")


class Peer:
    """A connection, registered unless `token` is None. `letters` has deliveries that are not taken yet."""

    def __init__(
        self,
        broker: WebBroker,
        name: str,
        token: str | None = KEY,
        path: str = "/ws/peerbus",
        patience: float = PATIENCE,
    ) -> None:
        self.name = name
        self.patience = patience
        self._open = ExitStack()
        self.socket = self._open.enter_context(broker.connect(path))
        self.letters: deque[Letter] = deque()
        self.names: list[str] = []
        if token is not None:
            self.send(register(name, token))
            try:
                self.names = self.answer()
            except BaseException:
                self.close()
                raise

    def send(self, *texts: bytes) -> None:
        """Send text messages."""
        for text in texts:
            self.socket.send(text, text=True)

    def read(self) -> bytes:
        """The next message, which is a text."""
        message = self.socket.recv(self.patience, decode=False)
        json.loads(message)
        return bytes(message)

    def answer(self) -> list[str]:
        """The names in the next `peers`; deliveries before it are kept."""
        while True:
            text = self.read()
            if found := DELIVER.fullmatch(text):
                self.letters.append(Letter(json.loads(found[1]), found[2]))
                continue
            frame = json.loads(text)
            assert list(frame) == ["protocol_version", "type", "names"], text
            assert (frame["protocol_version"], frame["type"]) == ("v1", "peers")
            names: list[str] = frame["names"]
            return names

    def peers(self) -> list[str]:
        """Ask for the connected peers: everything sent before is stored then."""
        self.send(PEERS)
        return self.answer()

    def say(self, to: Peer | str, body: Any = None, id: str | None = None, **changed: Any) -> str:
        """Send an envelope; its id."""
        id = id or unique()
        self.send(envelope(to.name if isinstance(to, Peer) else to, id, self.name, body, **changed))
        return id

    def get(self) -> Letter:
        """The next delivery."""
        while not self.letters:
            found = DELIVER.fullmatch(text := self.read())
            assert found, text
            self.letters.append(Letter(json.loads(found[1]), found[2]))
        return self.letters.popleft()

    def ids(self, count: int) -> list[str]:
        """The ids of the next deliveries."""
        return [self.get().id for _ in range(count)]

    def consume(self, count: int) -> list[str]:
        """Get and acknowledge so many; their ids. It is durable."""
        letters = [self.get() for _ in range(count)]
        self.ack(*(letter.key for letter in letters))
        self.peers()
        return [letter.id for letter in letters]

    def ack(self, *keys: str) -> None:
        self.send(*map(ack, keys))

    def close_seen(self) -> Close:
        """The broker's close frame, after all that it had sent before."""
        with pytest.raises(ConnectionClosed) as caught:
            self._read_on()
        return close_of(caught.value)

    def _read_on(self) -> None:
        while True:
            if found := DELIVER.fullmatch(self.read()):
                self.letters.append(Letter(json.loads(found[1]), found[2]))

    def close(self) -> None:
        self._open.close()

    def drop(self) -> None:
        """End the TCP connection without a close frame."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)
        self.close()


class ComeAgain(Exception):
    """The broker cannot register a peer now: close code 1011."""


class RawPeer(Raw):
    """A registered connection of which every byte is in the test's hands, perhaps with little room for what comes."""

    def __init__(self, broker: WebBroker, name: str, token: str = KEY, buffer: int = 0) -> None:
        super().__init__(cast(Any, broker), "/ws/peerbus", buffer)
        self.name = name
        self.send_texts(register(name, token))
        opcode, text = self.read()
        if opcode == CLOSE and int.from_bytes(text[:2]) == 1011:
            self.socket.close()
            raise ComeAgain(text[2:].decode())
        assert (opcode, json.loads(text)["type"]) == (TEXT, "peers"), text

    def send_texts(self, *texts: bytes) -> None:
        self.send(*map(frame, texts))

    def get(self) -> Letter | Close:
        """The next delivery, or how the broker closes."""
        opcode, payload = self.read()
        if opcode == CLOSE:
            return Close(int.from_bytes(payload[:2]), payload[2:].decode())
        found = DELIVER.fullmatch(payload)
        assert found, payload
        return Letter(json.loads(found[1]), found[2])

    def letter(self) -> Letter:
        """The next delivery."""
        letter = self.get()
        assert isinstance(letter, Letter), letter
        return letter

    def hang_up(self) -> None:
        """Send a close frame, as an answer or not, and see the end: everything sent before has been looked at."""
        self.send(frame(b"\x03\xe8", CLOSE))
        self.rest()
        self.socket.close()


def close_of(closed: ConnectionClosed) -> Close:
    """The code and reason of the broker's close frame."""
    assert closed.rcvd is not None, "the connection was dropped without a close frame"
    return Close(closed.rcvd.code, closed.rcvd.reason)


def closed_after(broker: WebBroker, *messages: bytes | str, path: str = "/ws/peerbus") -> Close:
    """The close frame of a connection whose first messages are these, unanswered; bytes are sent as binary."""
    with broker.connect(path) as client:
        for message in messages:
            client.send(message)
        with pytest.raises(ConnectionClosed) as caught:
            client.recv(PATIENCE)
    return close_of(caught.value)


# The store.

MAILBOX = "select queue_id from queues_mailbox where name = %s"


def pending(store: Database, name: str) -> list[str]:
    """The keys of the letters that a peer has not acknowledged, in order."""
    rows = store.rows(f"select key from queues_message where queue_id = ({MAILBOX}) order by id", name)
    return [key for (key,) in rows]


def events(store: Database, id: str) -> list[AuditEvent]:
    """The audit chain's rows of one key."""
    query = "select event, record_id, sender, recipient from queues_audit where record_id = %s order by seq"
    return [AuditEvent(*row) for row in store.rows(query, id)]


def chain(store: Database) -> list[AuditEvent]:
    """The whole chain `peerbus`, each of whose hashes is right."""
    rows = store.rows(
        "select seq, event, record_id, sender, recipient, hash from queues_audit"
        " where chain_id = (select id from queues_auditchain where name = 'peerbus') order by seq"
    )
    before, found = GENESIS, []
    for expected, (seq, *event, hash) in enumerate(rows):
        found.append(AuditEvent(*event))
        before = hash_after(before, found[-1])
        assert (seq, bytes(hash).hex()) == (expected, before)
    return found


def stored_keys(store: Database) -> list[str]:
    """The keys of all letters that were ever stored: those that wait, and those in the archive."""
    rows = store.rows(
        "select key from queues_message join queues_mailbox using (queue_id)"
        " union all select key from queues_archive join queues_mailbox using (queue_id) order by 1"
    )
    return [key for (key,) in rows]


def connected(store: Database) -> list[str]:
    """The connected peers, as the store has them."""
    return [name for (name,) in store.rows("select name from queues_mailbox where node_id is not null order by name")]


Join = Callable[..., Peer]
Launch = Callable[..., WebBroker]


class Done(NamedTuple):
    """A program that has ended."""

    returncode: int
    stdout: str
    stderr: str


def manage(store: Database | str, *arguments: str) -> Done:
    """Run a management command on a database."""
    url = store if isinstance(store, str) else store.url
    environment = {"DATABASE_URL": url, "DATA_DIR": home(url), "SECRET_KEY": settings.SECRET_KEY}
    status, lines, log = Process(sys.executable, "manage.py", *arguments, environment=environment).finish()
    return Done(status, "\n".join(lines), log)
