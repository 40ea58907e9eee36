"""A channel: AMQP as kombu speaks it, over the store.

Consumers that acknowledge get their messages from the engine (`engine_thread.py`). Those without acknowledgement on a
temporary queue, as replies, events and remote control are, read the store directly (`direct.py`): a process that only
asks a worker something, or waits for a result, runs no engine.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from amqp.protocol import queue_declare_ok_t  # type: ignore[import-untyped]
from kombu.transport.base import StdChannel, to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from queues.celery.consumers.channel_consumer import ChannelConsumer, QueueConsumer, Received, Settlement, acknowledge
from queues.celery.consumers.engine_thread import EngineThread, open_channel
from queues.celery.consumers.inbox import Inbox
from queues.celery.consumers.prefetch_buffer import PrefetchBuffer
from queues.celery.transport import temporary
from queues.celery.transport.batch import PublishBatch
from queues.celery.transport.declaring import Declared, declaration, without_effect
from queues.celery.transport.direct import DirectConsumer
from queues.celery.transport.envelope import TRANSIENT, Message, Routed, Unreadable, from_row, to_row
from queues.celery.transport.environment import refuse_green_threads
from queues.celery.transport.errors import (
    DatabaseUnavailable,
    NoSuchQueue,
    NotImplementedHere,
    PreconditionFailed,
    QueueIsExclusive,
    QueueIsFull,
    QueueIsKept,
    Refused,
    Unroutable,
    connection_errors,
)
from queues.celery.transport.exchanges import Exchanges
from queues.celery.transport.publishing import PublishPath
from queues.celery.transport.store_connection import StoreConnection
from queues.ends import ended
from queues.engine.api import Deliveries, Purge, QueueNotFound
from queues.formats.texts import is_storable, shown
from queues.log_throttle import FAULTS, LogThrottle

logger = logging.getLogger(__name__)
#: Of messages that cannot be read: each is a dead letter, with the reason.
_throttle = LogThrottle(*FAULTS)

DEFAULT_PRIORITY = 0
#: The states that a purge removes: waiting messages.
WAITING = (0, 2)
PURGED, PURGED_AT_ONCE = 2, 1000
#: Settlements of refused deliveries.
REQUEUE = partial(Deliveries.give_back, error="requeued by the consumer")
REJECT = partial(Deliveries.bury, error="rejected by the consumer")


class Connection(Protocol):
    """The transport as its channels use it, which kombu also calls a connection. `Transport` documents the methods."""

    database: StoreConnection
    exchanges: Exchanges
    declared: Declared
    publisher: PublishPath
    inbox: Inbox
    conninfo: str
    connection_errors: Any
    #: Queues whose consumers also get messages that no Celery client has published.
    foreign: frozenset[str]

    def flush(self) -> None: ...
    @property
    def confirms(self) -> bool: ...
    def tell_once(self, text: str, *arguments: object) -> None: ...
    def step_soon(self, channel: Channel) -> None: ...
    def add_direct(self, consumer: DirectConsumer) -> None: ...
    def remove_direct(self, consumer: DirectConsumer) -> None: ...
    def close_channel(self, channel: Any) -> None: ...


class FoundQueue(NamedTuple):
    """A queue as queue.sql has it; `exclusive` to another connection."""

    id: int
    is_temporary: bool
    auto_delete: bool
    ready: int
    consumers: int
    exclusive: bool


@dataclass(slots=True)
class DeclaredConsumer:
    """A consumer of this channel; `held` is the temporary queue whose lock is held for it."""

    queue: str
    no_ack: bool
    callback: Callable[[Message], Any]
    held: int | None = None
    auto_delete: bool = False
    direct: DirectConsumer | None = None
    engaged: QueueConsumer | None = None


@contextlib.contextmanager
def _engine_errors(queue: str, method: str) -> Iterator[None]:
    """Translate the engine's errors into the transport's."""
    try:
        with connection_errors():
            yield
    except QueueNotFound as error:
        raise NoSuchQueue(queue, method) from error


def _is_quiet(name: str) -> bool:
    """Whether an exchange or queue carries remote control or events, which only current listeners get."""
    return name == "celeryev" or name.endswith("pidbox")


class Channel(StdChannel):
    """One channel of a connection, whose `Transport` it shares with others."""

    supports_batch_publish = True

    def __init__(self, transport: Connection, channel_id: int) -> None:
        self.connection: Connection | None = transport
        self.channel_id = channel_id
        self.closed = False
        #: Callbacks of kombu's producers for messages that are mandatory and reach no queue.
        self.events: dict[str, set[Callable[..., Any]]] = {"basic_return": set()}
        self._consumers: dict[str, DeclaredConsumer] = {}
        self._unsettled: dict[int, Received] = {}
        #: Those of them that `basic_get` took. They use no consumer's place.
        self._got: set[int] = set()
        self._prefetched: PrefetchBuffer[Received] = PrefetchBuffer(self._call_for_next)
        self._called = False
        self._tags = itertools.count(1)
        self._prefetch = 0
        self._channel_consumer: ChannelConsumer | None = None
        self._thread: EngineThread | None = None

    @property
    def _transport(self) -> Connection:
        if self.connection is None:
            raise ConnectionError("the channel is closed")
        return self.connection

    # Declaring.

    def prepare_queue_arguments(self, arguments: Mapping[str, Any], **options: Any) -> Mapping[str, Any]:
        return to_rabbitmq_queue_arguments(arguments, **options)  # type: ignore[no-any-return]

    def exchange_declare(
        self, exchange: str = "", type: str = "direct", passive: bool = False,
        arguments: Mapping[str, Any] | None = None, **_: Any,
    ) -> None:  # fmt: skip
        if exchange:
            self._transport.exchanges.declare(exchange, type or "direct", passive, arguments)

    def exchange_delete(self, exchange: str, if_unused: bool = False, **_: Any) -> None:
        self._transport.exchanges.delete(exchange, if_unused)

    def exchange_bind(self, destination: str, source: str = "", *_: Any, **__: Any) -> None:
        raise NotImplementedHere(f"{destination!r} cannot be bound to the exchange {source!r}", "exchange_bind")

    def exchange_unbind(self, destination: str, source: str = "", *_: Any, **__: Any) -> None:
        raise NotImplementedHere(f"{destination!r} cannot be bound to the exchange {source!r}", "exchange_unbind")

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **ignored: Any,
    ) -> queue_declare_ok_t:
        """Make a queue unless there is one; returns its name, how many messages wait and how many consume from it."""
        queue = queue or f"amq.gen-{uuid()}"
        if not passive:
            self._declare(queue, declaration(queue, exclusive, auto_delete, arguments))
            if names := without_effect(arguments):
                text = "arguments of the queue %r have no effect, docs/celery.md says what to do: %s"
                self._transport.tell_once(text, queue, ", ".join(names))
        found = self._find(queue, "queue_declare")
        # kombu warns the second of two workers with one name. A worker that reconnects meets its own former session.
        owned = exclusive and not passive and not _is_quiet(queue)
        if owned and not temporary.own(self._transport.database, found.id):
            raise QueueIsExclusive(queue, "queue_declare")
        return queue_declare_ok_t(queue, found.ready, found.consumers)

    def _declare(self, queue: str, parameters: dict[str, Any]) -> None:
        self._transport.database.query("declare", **parameters)
        if parameters["expires"] is not None:
            temporary.sweep(self._transport.database)
        if not self._transport.database.query("plan", name=queue):  # it was just being dropped as unused
            self._transport.database.query("declare", **parameters)
        self._transport.declared.add(parameters)

    def _look_for(self, queue: str, method: str) -> FoundQueue | None:
        """A queue, or None. Raises QueueIsExclusive."""
        if not is_storable(queue):
            return None
        found = self._transport.database.query(
            "queue", name=queue, lock_class=temporary.LOCK_CLASS, owner_class=temporary.OWNER_CLASS
        )
        if not found:
            return None
        if (one := FoundQueue(*found[0])).exclusive:
            raise QueueIsExclusive(queue, method)
        return one

    def _find(self, queue: str, method: str) -> FoundQueue:
        """A queue. Raises NoSuchQueue or QueueIsExclusive."""
        if (found := self._look_for(queue, method)) is None:
            raise NoSuchQueue(queue, method)
        return found

    def queue_bind(self, queue: str, exchange: str = "", routing_key: str = "", **_: Any) -> None:
        if exchange:  # to the default one every queue is bound by its name
            self._find(queue, "queue_bind")
            self._transport.exchanges.bind(queue, exchange, routing_key or "")

    def queue_unbind(self, queue: str, exchange: str = "", routing_key: str = "", **_: Any) -> None:
        self._transport.exchanges.unbind(queue, exchange, routing_key or "")

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> int:
        """Delete a temporary queue without consumers; returns how many messages it had. Raises QueueIsKept for any
        other, and PreconditionFailed."""
        found = self._look_for(queue, "queue_delete")
        if found is None:
            return 0
        if not found.is_temporary:
            raise QueueIsKept(queue)
        if if_unused and found.consumers:
            raise PreconditionFailed(f"the queue {queue!r} is in use", "queue_delete")
        if if_empty and found.ready:
            raise PreconditionFailed(f"the queue {queue!r} is not empty", "queue_delete")
        temporary.drop(self._transport.database, "drop", [found.id])
        return found.ready

    def queue_purge(self, queue: str, **_: Any) -> int:
        """Remove waiting and delayed messages of a queue; returns how many."""
        id = self._find(queue, "queue_purge").id
        gone, database = 0, self._transport.database
        [(high,)] = database.query("newest")  # messages confirmed later stay
        for state in WAITING:
            more = True
            while more:
                [(count,)] = database.query(
                    "purge", queue=id, state=state, high=high, ids=None, limit=PURGED_AT_ONCE, outcome=PURGED,
                    event="purge", by="celery", named=False,
                )  # fmt: skip
                gone += count
                more = count >= PURGED_AT_ONCE or bool(
                    database.query("unpack_oldest", queue=id, high=high, messages=PURGED_AT_ONCE)[0][0]
                )
        ended("purged", gone)
        # Messages in engines' memory are removed, too.
        texts = list(Purge(id, "celery", high).texts())
        database.query("instruct", texts=texts, nodes=[None] * len(texts))
        return gone

    def after_reply_message_received(self, queue: str) -> None:
        self.queue_delete(queue)

    # Publishing.

    def prepare_message(
        self, body: Any, priority: int | None = None, content_type: str | None = None,
        content_encoding: str | None = None, headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        properties = {} if properties is None else properties
        properties.setdefault("priority", DEFAULT_PRIORITY if priority is None else priority)
        return {
            "body": body,
            "content-type": content_type,
            "content-encoding": content_encoding,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(
        self, message: dict[str, Any], exchange: str = "", routing_key: str = "", mandatory: bool = False,
        immediate: bool = False, timeout: float | None = None, confirm_timeout: float | None = None, **_: Any,
    ) -> None:  # fmt: skip
        """Publish a message: stored when this returns, or dropped if it reaches no queue and is not mandatory.

        `timeout` and `confirm_timeout` are seconds; the sooner counts, within the transport's own. Raises ChannelError
        (Unroutable, QueueIsFull), Unstorable, or DatabaseUnavailable: then it may be stored all the same.
        """
        limits = [seconds for seconds in (timeout, confirm_timeout) if seconds is not None]
        with self._transport.database.within(min(limits, default=None)):
            self.store([self.routed(message, exchange, routing_key, mandatory, immediate)])

    basic_publish_confirm = basic_publish

    def routed(
        self, message: dict[str, Any], exchange: str, routing_key: str, mandatory: bool = False, immediate: bool = False
    ) -> Routed:
        """A message with one row per queue that it reaches."""
        if immediate:
            raise NotImplementedHere("immediate=true", "basic_publish")
        routing_key = routing_key or ""
        queues = self._transport.exchanges.route(exchange, routing_key) if exchange else [routing_key]
        rows = [to_row(queue, message, exchange, routing_key) for queue in queues]
        return Routed(message, exchange, routing_key, mandatory, rows)

    def store(self, messages: Sequence[Routed]) -> None:
        """Store messages, all or none, but for those that reach no queue: they are dropped, as AMQP drops them.

        Raises Unroutable for one that is mandatory, unless producers have callbacks for it.
        """
        gone = self._gone_before(messages)
        self._give_back(messages, gone)
        while rows := [row for message in messages for row in message.rows if row.queue not in gone]:
            try:
                self._transport.publisher.publish(rows)
                break
            except NoSuchQueue as error:
                gone.add(error.queue)
                self._give_back(messages, gone)
            except QueueIsFull:
                ended("rejected", len(rows))
                raise
        for message in messages:
            self._tell_dropped(message, gone)

    def _gone_before(self, messages: Sequence[Routed]) -> set[str]:
        """Missing queues of mandatory messages, where storing would not report them."""
        if self._transport.confirms:
            return set()
        names = {row.queue for message in messages if message.mandatory for row in message.rows}
        return {
            name for name in names
            if not self._transport.declared.has(name) and not self._transport.database.query("plan", name=name)
        }  # fmt: skip

    def _give_back(self, messages: Sequence[Routed], gone: set[str]) -> None:
        """Raise Unroutable, or tell producers, of mandatory messages that reach no queue."""
        for message in messages:
            if message.mandatory and all(row.queue in gone for row in message.rows):
                error = Unroutable(message.exchange, message.routing_key)
                if not self.events["basic_return"]:
                    raise error
                for callback in tuple(self.events["basic_return"]):
                    callback(error, message.exchange, message.routing_key, message.message)

    def _tell_dropped(self, message: Routed, gone: set[str]) -> None:
        """Log once that durable messages are dropped."""
        kept = message.message["properties"].get("delivery_mode") != TRANSIENT
        if not message.mandatory:
            ended("unroutable", sum(row.queue in gone for row in message.rows) + (not message.rows))
        if not (message.rows or message.mandatory or _is_quiet(message.exchange)) and kept:
            text = "a message to the exchange %r is dropped, since no queue is bound to it for the routing key %r"
            self._transport.tell_once(text, message.exchange, message.routing_key)
        for row in message.rows:
            if row.durable and row.queue in gone:
                text = "there is no queue %r: messages published to it are dropped"
                self._transport.tell_once(text, row.queue)

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        return PublishBatch(self, max_size)

    # Consuming.

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Limit the unacknowledged messages of all the channel's consumers together; 0: no limit."""
        if prefetch_size:
            raise NotImplementedHere(f"prefetch_size is {shown(prefetch_size)}, not 0", "basic_qos")
        if not isinstance(prefetch_count, int) or prefetch_count < 0:
            raise PreconditionFailed(f"prefetch_count is {shown(prefetch_count)}", "basic_qos")
        self._prefetch = prefetch_count
        if self._channel_consumer is not None and self._thread is not None:
            self._thread.call(self._channel_consumer.set_prefetch, prefetch_count)
        self._call_for_next()

    def basic_consume(
        self, queue: str, no_ack: bool = False, callback: Callable[[Message], Any] | None = None,
        consumer_tag: str = "", exclusive: bool = False, arguments: Mapping[str, Any] | None = None, **_: Any,
    ) -> str:  # fmt: skip
        """Pass messages to `callback`. Raises NoSuchQueue, QueueIsExclusive, or Refused."""
        if callback is None:
            raise TypeError("a consumer needs a callback")
        if exclusive:
            text = "exclusive consumers; a queue may have x-single-active-consumer"
            raise NotImplementedHere(text, "basic_consume")
        if consumer_tag in self._consumers:
            text = f"NOT_ALLOWED - the consumer tag {consumer_tag!r} is in use"
            raise Refused(text, "basic_consume", 530)
        tag = consumer_tag or f"amq.ctag-{uuid()}"
        id, is_temporary, *_rest = self._find(queue, "basic_consume")
        if arguments:
            text = "arguments of consumers of the queue %r have no effect: %s"
            self._transport.tell_once(text, queue, ", ".join(sorted(arguments)))
        consumer = DeclaredConsumer(queue, no_ack, callback)
        if is_temporary:
            consumer.auto_delete = temporary.hold(self._transport.database, queue, id)
            consumer.held = id
        self._consumers[tag] = consumer
        if is_temporary and no_ack:
            consumer.direct = DirectConsumer(self, tag, queue, id, callback)
            self._transport.add_direct(consumer.direct)
        else:
            thread, consumers = self._engage()
            consumer.engaged = QueueConsumer(consumers, tag, queue)
            with _engine_errors(queue, "basic_consume"):
                thread.consume(consumers, consumer.engaged)
        return tag

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        consumer = self._consumers.pop(consumer_tag, None)
        if consumer is None:
            return
        if consumer.engaged is not None and self._channel_consumer is not None and self._thread is not None:
            self._thread.call(self._channel_consumer.remove, consumer.engaged)
            for received in self._prefetched.remove(lambda received: received.consumer is consumer.engaged):
                received.settle(Deliveries.hand_back)
        transport = self._transport
        if consumer.direct is not None:
            transport.remove_direct(consumer.direct)
        if consumer.held is not None and transport.database.usable:
            temporary.release(transport.database, consumer.held, consumer.auto_delete)

    def _engage(self) -> tuple[EngineThread, ChannelConsumer]:
        if self._thread is None or self._channel_consumer is None:
            transport = self._transport
            refuse_green_threads()
            with connection_errors():
                self._thread, self._channel_consumer = open_channel(
                    transport.conninfo, self._prefetched.put, self._call, "celery"
                )
            self._thread.call(self._channel_consumer.read_ahead_into, self._prefetched)
            self._thread.call(self._channel_consumer.set_prefetch, self._prefetch)
        return self._thread, self._channel_consumer

    def _call(self) -> None:
        """Have `step` called soon."""
        if not self._called and self.connection is not None:
            self._called = True
            self.connection.step_soon(self)

    def _call_for_next(self) -> None:
        """Have `step` called soon if there is a message and a place for it. Called after each change of either, so the
        thread that makes the later change sees both."""
        if self._prefetched and not self._is_full:
            self._call()

    @property
    def _is_full(self) -> bool:
        """Whether consumers have as many messages as they may."""
        return bool(self._prefetch) and len(self._unsettled) - len(self._got) >= self._prefetch

    def step(self) -> bool:
        """Give one message to its consumer, in the thread that serves the connection, if there is one and a place."""
        self._called = False
        if self._thread is not None and self._thread.ended and not self.closed:
            raise DatabaseUnavailable("the engine's thread has ended: the log says why")
        if self._is_full:
            return False
        received = self._prefetched.get()
        if received is None:
            return False
        try:
            self._deliver(received)
        finally:  # also after the consumer's code failed, which must not stop the next message
            self._call_for_next()
        return True

    def _deliver(self, received: Received) -> None:
        consumer = self._consumers.get(received.consumer.tag)
        if consumer is None or self._thread is None:  # it was cancelled meanwhile
            received.settle(Deliveries.hand_back)
            return
        message = self._message(received, consumer.no_ack)
        if message is not None:
            consumer.callback(message)

    def _message(self, received: Received, no_ack: bool) -> Message | None:
        """The message for a consumer. An unreadable one becomes a dead letter, and None is returned."""
        _, id, payload, attempts, detail = received.push
        headers, content = (None, None) if detail is None else (detail.headers, detail.content)
        tag = next(self._tags)
        try:
            message = self.read(
                received.consumer.queue, id, payload, headers, content, attempts, tag, received.consumer.tag
            )
        except Unreadable as error:
            received.settle(partial(Deliveries.bury, error=str(error)))
            return None
        if no_ack:
            received.settle(acknowledge)
        else:
            self._unsettled[tag] = received
        return message

    def read(
        self, queue: str, id: int, payload: bytes, headers: Any, content: int | None, attempts: int, tag: int | str,
        consumer: str,
    ) -> Message:  # fmt: skip
        """A stored message as a consumer gets it. Raises Unreadable, and says so in the log: it costs this one."""
        try:
            return from_row(
                payload, headers, content, attempts, queue in self._transport.foreign, self, tag, consumer
            )
        except Unreadable as error:
            if _throttle.admit(queue, time.monotonic()):
                logger.warning("the message %d of the queue %r is not given to its consumer: %s", id, queue, error)
            raise
        except Exception as error:
            if _throttle.admit(queue, time.monotonic()):
                logger.exception("the message %d of the queue %r cannot be read", id, queue)
            raise Unreadable(f"it cannot be read: {error!r}") from error

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Message | None:
        """The next message of a queue, or None. Messages published or requeued here before are seen."""
        self._find(queue, "basic_get")
        self._transport.flush()
        thread, consumers = self._engage()
        while True:
            with _engine_errors(queue, "basic_get"):
                received = thread.get(QueueConsumer(consumers, "", queue))
            if received is None:
                return None
            message = self._message(received, no_ack)
            if message is not None:
                break
        if not no_ack:
            self._got.add(message.delivery_tag)
            self._call_for_next()
        return message

    def message_to_python(self, message: Message) -> Message:
        return message

    # Settling.

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Settle a message. Any thread may call this."""
        for tag in [tag for tag in tuple(self._unsettled) if tag <= delivery_tag] if multiple else (delivery_tag,):
            self._settle(tag, acknowledge)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Give a message back to the tail of its queue, or make it a dead letter.

        One that `basic_get` has got goes back to its place, as if it had only been looked at: Celery's ``rpc://``
        results rely on it.
        """
        given_back = Deliveries.hand_back if delivery_tag in self._got else REQUEUE
        self._settle(delivery_tag, given_back if requeue else REJECT)

    def basic_recover(self, requeue: bool = True) -> None:
        """Return unacknowledged messages to their places."""
        for tag in tuple(self._unsettled):
            self._settle(tag, Deliveries.hand_back)

    basic_recover_async = basic_recover

    def _settle(self, tag: int, how: Settlement) -> None:
        received = self._unsettled.pop(tag, None)
        if received is not None:
            self._got.discard(tag)
            received.settle(how)
            self._call_for_next()

    # Other methods of AMQP.

    def confirm_select(self, nowait: bool = False) -> None:
        """Accept AMQP's request for confirms. Publishes are confirmed unless the option ``confirm_publish`` is
        False."""

    def flow(self, active: bool = True) -> None:
        if not active:
            raise NotImplementedHere("active=false: cancel the consumers, or set a prefetch count", "flow")

    def tx_select(self) -> None:
        raise NotImplementedHere("AMQP's transactions; producers have batch(), Django its own", "tx_select")

    # The end.

    def close(self) -> None:
        """Cancel the consumers and give back what they have."""
        if self.closed:
            return
        self.closed = True
        transport = self._transport
        for tag in tuple(self._consumers):
            with contextlib.suppress(*transport.connection_errors):  # PostgreSQL has noticed their end already
                self.basic_cancel(tag)
        self.basic_recover()
        while (received := self._prefetched.get()) is not None:
            received.settle(Deliveries.hand_back)
        if self._channel_consumer is not None and self._thread is not None:
            self._thread.call(self._thread.forget, self._channel_consumer)
        transport.close_channel(self)
        self.connection = None
