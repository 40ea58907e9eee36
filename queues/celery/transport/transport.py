"""The transport: a connection of kombu's, and the loop that serves it.

A connection is one `StoreConnection` to PostgreSQL, opened by the process that uses it, and an inbox that the
engine's thread puts messages into. Both have a descriptor, which either Celery's event loop watches or
`drain_events` waits for.
"""

from __future__ import annotations

import logging
import selectors
import threading
import time
from array import array
from itertools import chain
from typing import Any

import psycopg
from kombu.exceptions import ChannelError
from kombu.transport import base
from kombu.utils.url import maybe_sanitize_url

from queues.celery.consumers.inbox import Inbox
from queues.celery.transport import temporary
from queues.celery.transport.address import conninfo
from queues.celery.transport.channel import Channel
from queues.celery.transport.database_of_alias import end_with_database
from queues.celery.transport.declaring import Declared
from queues.celery.transport.direct import DirectConsumer
from queues.celery.transport.exchanges import Exchanges
from queues.celery.transport.publishing import ConnectionPublisher, PublishPath
from queues.celery.transport.store_connection import TIMEOUT, StoreConnection
from queues.celery.transport.transactional import DjangoPublisher
from queues.celery.transport.unconfirmed import UnconfirmedPublisher
from queues.engine.api import NotMigrated, StoreUnavailable
from queues.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

#: Seconds between looks for messages that no notification told of.
POLL = 5.0
#: Seconds between looks for unused temporary queues.
SWEEP = 10.0
#: Messages given to consumers before Celery's loop has its turn again.
TURN = 50
#: Seconds before a warning about a queue or exchange is repeated.
TELL_AGAIN = 3600.0
#: Seconds of that turn, at least.
REST = 0.001


class Transport(base.Transport):
    """Celery's messages in Fivewire's store. Options: see docs/celery.md."""

    can_parse_url = True
    default_port: Any = 5432
    driver_type = "fivewire"
    driver_name = "psycopg"
    connection_errors: Any = (
        *base.Transport.connection_errors, OSError, psycopg.OperationalError, psycopg.InterfaceError, StoreUnavailable,
    )  # fmt: skip
    channel_errors = (ChannelError,)
    #: After these errors kombu reconnects and tries again. A channel's refusal would only repeat.
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors: tuple[type[Exception], ...] = ()
    implements = base.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )

    client: Any
    database: StoreConnection
    publisher: PublishPath
    declared: Declared
    exchanges: Exchanges
    inbox: Inbox
    conninfo: str
    #: Queues whose consumers also get messages that no Celery client has published.
    foreign: frozenset[str]

    def __init__(self, client: Any, **_: Any) -> None:
        self.client = client
        self.channels: list[Channel] = []
        self._numbers = array("H")
        self._direct: dict[int, list[DirectConsumer]] = {}
        #: Whether a direct consumer's queue may have messages.
        self._told = False
        self._hub: Any = None
        self._hub_thread = 0
        #: The timer of `_work`: one for all times, since it is set for nearly each message.
        self._turn: Any = None
        self._working = False
        self._connected = False
        self._polled_at = 0.0
        self._unconfirmed: UnconfirmedPublisher | None = None

    def driver_version(self) -> str:
        return psycopg.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri if include_password else str(maybe_sanitize_url(uri, mask))

    # Connections: kombu calls what `establish_connection` returns a connection, and it is this object.

    def establish_connection(self) -> Transport:
        """Connect. Raises DatabaseUnavailable, InvalidBroker, or NotMigrated when the database is not Fivewire's."""
        options = self.client.transport_options
        self.conninfo = conninfo(self.client)
        timeout, patience = self.client.connect_timeout or 5, float(options.get("request_timeout", TIMEOUT))
        self.database = StoreConnection(self.conninfo, timeout, patience=patience)
        [(migrated,)] = self.database.query("migrated")
        if not migrated:
            self.database.close()
            raise NotMigrated()
        self.database.on_news = self._hear
        self.declared = Declared()
        if options.get("confirm_publish", True):
            self.publisher = ConnectionPublisher(self.database, self.declared)
        else:
            self.publisher = self._unconfirmed = UnconfirmedPublisher(self.conninfo, timeout, self.declared, patience)
        if (alias := options.get("django_connection")) is not None:
            self.publisher = DjangoPublisher(alias, self.database, self.publisher, self.declared)
            end_with_database(self.database)
        self.exchanges = Exchanges(self.database, self.declared)
        self.inbox = Inbox()
        self._throttle = LogThrottle(TELL_AGAIN)
        self.foreign = frozenset(options.get("foreign_queues", ()))
        self._connected = True
        return self

    @property
    def connected(self) -> bool:
        return self._connected and self.database.usable

    def verify_connection(self, connection: Transport) -> bool:
        return connection.connected

    def close_connection(self, connection: Transport) -> None:
        """Close the channels and the connection."""
        if not self._connected:
            return
        self._connected = False
        for channel in tuple(self.channels):
            channel.close()
        self._unregister()
        if self._unconfirmed is not None:
            self._unconfirmed.close()
        self.database.close()
        self.inbox.close()

    def _collect(self, connection: Transport) -> None:
        """Forget a connection that is lost, or that is another process's, which hears nothing of it."""
        self.close_connection(connection)

    @property
    def confirms(self) -> bool:
        """Whether a publish outside transactions is answered by the database."""
        return self._unconfirmed is None

    def flush(self) -> None:
        """Wait until messages published without waiting are stored."""
        if self._unconfirmed is not None:
            self._unconfirmed.flush()

    def tell_once(self, text: str, *arguments: object) -> None:
        """Log a warning, once an hour for each first argument of its text."""
        if self._throttle.admit(f"{text} {arguments[0]}", time.monotonic()):
            logger.warning(text, *arguments)

    # Channels.

    def create_channel(self, connection: Transport) -> Channel:
        """A channel of a connection, which after a failover may be of another transport than this one."""
        return connection._open_channel()

    def _open_channel(self) -> Channel:
        number = next(number for number in range(1, 65536) if number not in self._numbers)
        self._numbers.append(number)
        channel = Channel(self, number)
        self.channels.append(channel)
        return channel

    def close_channel(self, channel: Channel) -> None:
        if channel in self.channels:
            self.channels.remove(channel)
            self._numbers.remove(channel.channel_id)

    # Consumers of temporary queues.

    def add_direct(self, consumer: DirectConsumer) -> None:
        """Tell this consumer when its queue has something."""
        self._direct.setdefault(consumer.queue, []).append(consumer)
        self.database.listen(consumer.queue)
        self._told = True
        self._work_soon()

    def remove_direct(self, consumer: DirectConsumer) -> None:
        consumers = self._direct[consumer.queue]
        consumers.remove(consumer)
        if not consumers:
            del self._direct[consumer.queue]
            if self.database.usable:
                self.database.listen(consumer.queue, "unlisten")

    def _hear(self, queue: int) -> None:
        for consumer in self._direct.get(queue, ()):
            consumer.tell()
        self._told = True
        self._work_soon()

    def _poll(self) -> None:
        """Look for messages without a notification."""
        self._polled_at = time.monotonic()
        for consumers in self._direct.values():
            for consumer in consumers:
                consumer.tell()
        self._told = True
        self._work_soon()

    # Events.

    def _step(self) -> bool:
        """Pass one waiting message to its consumer. Remote control comes first."""
        if self._told:
            for consumer in tuple(chain.from_iterable(self._direct.values())):
                if consumer.step(self.database):
                    return True
            self._told = False
        while (channel := self.inbox.get()) is not None:
            if channel.step():
                return True
        return False

    def drain_events(self, connection: Transport, timeout: float | None = None, **_: Any) -> None:
        """Wait for one message and give it to its consumer. Raises socket.timeout when none comes in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._step():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise TimeoutError()
            if now - self._polled_at >= POLL:
                self._poll()
                continue
            wake = self._polled_at + POLL if deadline is None else min(deadline, self._polled_at + POLL)
            self._wait(wake - now)

    def _wait(self, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.inbox, selectors.EVENT_READ)
            selector.register(self.database, selectors.EVENT_READ)
            for key, _ in selector.select(seconds):
                if key.fileobj is self.database:
                    self.database.hear()

    # Celery's event loop.

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        """Have the loop of a worker watch the descriptors."""
        self._hub, self._hub_thread = loop, threading.get_ident()
        self._turn = loop.timer.Entry(self._work)
        loop.add_reader(self.inbox.fileno(), self._work)
        loop.add_reader(self.database.fileno(), self._listen)
        loop.call_repeatedly(POLL, self._poll)
        loop.call_repeatedly(SWEEP, self._sweep)

    def _unregister(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None and not self.database.inherited:  # a child shares the loop's epoll with its parent
            for descriptor in (self.inbox.fileno(), *self.database.descriptors()):
                if descriptor in hub.readers:
                    hub.remove_reader(descriptor)

    def _listen(self) -> None:
        self.database.hear()

    def _sweep(self) -> None:
        if self.connected:
            temporary.sweep(self.database)

    @property
    def _in_hub(self) -> bool:
        """Whether the caller is the event loop's own thread."""
        return self._hub is not None and threading.get_ident() == self._hub_thread

    def step_soon(self, channel: Channel) -> None:
        """Schedule a channel's `step`. Any thread may call this; the loop's own thread needs no signal."""
        if self._in_hub:
            self.inbox.add(channel)
            self._work_soon()
        else:
            self.inbox.put([channel])

    def _work_soon(self, seconds: float = 0.0) -> None:
        if self._hub is None or self._working:
            return
        self._working = True
        if self._in_hub:  # a timer, since the loop fires timers between `call_soon`'s callbacks and its wait
            self._hub.timer.enter_at(self._turn, time.monotonic() + seconds if seconds else 0.0)
        else:
            self._hub.call_soon(self._work)

    def _work(self) -> None:
        self._working = False
        if not self._connected:
            return
        for _ in range(TURN):
            if not self._step():
                return
        self._work_soon(REST)
