"""One SSPQ connection on the server: packets in, the engine's work, packets out (docs/protocols/sspq.md)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from queues.engine.api import Broker, Delivery, Destination, EngineError, LocalDeadLetters, PrefetchedQueue, Waiter
from queues.permissions.rules import Protocol
from wire.net.connection import Connection, contained
from wire.net.limits import Closure
from wire.server import Server
from wire.session import WireSession
from wire.sspq import codec
from wire.sspq.codec import CONFIRM, MAX_RETRIES, SEND, Decoder
from wire.sspq.machine import PACKET_EVENTS, Action, Event, Slot, State, deliveries_allowed, remaining

logger = logging.getLogger(__name__)

#: Seconds that a stop goes on reading what was sent before it.
LINGER = 0.2
UNLIMITED = 0  # the engine's word for a message that is never given up


@dataclass(slots=True)
class SspqQueue:
    """The queue that a listener serves, and its dead letters (None: switched off)."""

    destination: Destination
    queue: PrefetchedQueue
    dead_letters: LocalDeadLetters | None
    max_payload: int = codec.MAX_PAYLOAD
    _looking: asyncio.Task[None] | None = None

    def look_again(self, engine: Broker) -> None:
        """The queue was deleted: if another of its name has been made, serve that from now on."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(engine))

    async def _look(self, engine: Broker) -> None:
        name = self.destination.name.decode()
        with contextlib.suppress(EngineError):
            dead_letters = None if self.dead_letters is None else await engine.dead_letters(name)
            self.queue, self.dead_letters = await engine.queue(name), dead_letters


class SspqSession(WireSession, Waiter):
    """The server's side of one connection. It waits and holds in one slot; SEND may come at any time."""

    def __init__(self, connection: Connection, server: Server, serves: SspqQueue) -> None:
        WireSession.__init__(self, connection, server.engine, Protocol.SSPQ)
        Waiter.__init__(self, key=None)
        self._serves = serves
        self._lost_publishes = server.lost_publishes
        self._decoder: Decoder = Decoder(serves.max_payload)
        self._slot = Slot()
        self._unconfirmed = server.unconfirmed.of(connection.peer[0])
        self._publisher = server.engine.publisher(serves.destination)
        self._waits_in: PrefetchedQueue | None = None
        #: The queue that it has received from.
        self._receives: PrefetchedQueue | None = None
        self._held: tuple[PrefetchedQueue, int] | None = None
        self._dispatching = False
        #: The server stops: nothing is asked for any more; and, a moment later, the session drains.
        self._stopping = False
        connection.handshake_done()  # SSPQ has none: a SEND may come at any time, only the idle limit holds

    # Called by the connection.

    def data_received(self, data: bytes) -> None:
        publish, replies, sent = self._publisher.publish, self._replies, 0
        for kind, retries, payload in self._decoder.feed(data):
            if kind == SEND:
                replies.follow_batch(publish(payload, self, 0, _attempts(retries)))
                sent += 1
            elif kind == CONFIRM and replies.unsent:
                continue  # it came before the message that is held has left: it cannot be meant
            elif (event := PACKET_EVENTS.get(kind)) is not None:
                self._act(self._slot.on(event))
        if sent:
            self.client.published(sent)
        replies.flush()
        self._engine.check_saturation()
        self.connection.hold(self._decoder.pending)
        if replies.batch == self._engine.open_batch:
            self._unconfirmed.add(self.connection, len(data))
        if self._decoder.error is not None:
            self.connection.blame(Closure.PROTOCOL, self._decoder.error)
            self.connection.close()

    def eof_received(self) -> None:
        """Everything before the end has been taken; half a SEND is discarded and counted."""
        if self._decoder.truncated:
            self._lost_publishes["truncated"] += 1

    def connection_lost(self) -> None:
        if self._receives is not None:
            self._receives.leave(self, count=not self._stopping)
        self._act(self._slot.on(Event.DISCONNECT))
        self._leave()

    def drain(self) -> None:
        """Refuse who waits; let who holds a message finish it."""
        self._stopping = True
        # Senders do not wait for answers: what they have sent is still taken, for a moment.
        self._loop.call_later(LINGER, self._finish_draining)
        if self._slot.state in (State.WAITING, State.WAITING_DEAD):
            self._withdraw()
            self._act(self._slot.on(Event.REFUSED))
            self._replies.flush()

    def overfull(self) -> None:
        """There is no packet to say so; the SEND that is cut off counts as lost."""
        self.eof_received()

    @contained
    def _finish_draining(self) -> None:
        self._draining = True
        self._close_when_done()

    def _at_work(self) -> bool:
        return self._slot.state not in (State.IDLE, State.CLOSED)

    # Called by the engine.

    def holds(self) -> tuple[int, int]:
        """The message that it has not confirmed, and the bytes that it keeps."""
        return int(self._held is not None), self.connection.held_bytes

    def consumes(self) -> dict[int, int]:
        """The queue, once it has received from it, and the message of it that it has not confirmed."""
        return {} if self._receives is None else {self._receives.id: int(self._held is not None)}

    @contained
    def deliver(self, delivery: Delivery) -> None:
        """A message for the waiting RECEIVE."""
        buffer, self._waits_in = self._waits_in, None
        assert buffer is not None
        tag, payload, attempts, detail = delivery
        action = self._slot.on(Event.DELIVERED)
        if action is Action.PUT_BACK:
            buffer.deliveries.hand_back(tag)
            return
        self._held = buffer, tag
        self.client.delivered(1)
        left = 0
        if action is Action.DELIVER:
            own = None if detail is None else detail.max_attempts
            limit = buffer.policy.max_attempts if own is None else own
            left = remaining(limit or None, attempts + 1)
        self.connection.allow_silence(False)
        self._replies.begin().append(codec.encode_send(payload, left))
        self._flush_if_called()

    @contained
    def refuse(self) -> None:
        """Nothing will come for the waiting RECEIVE."""
        self._waits_in = None
        self._act(self._slot.on(Event.REFUSED))
        self._flush_if_called()

    @contained
    def publish_failed(self, token: int, error: EngineError) -> None:
        """A SEND was not stored. The protocol has no answer for it: the end of the connection says so."""
        self._lost_publishes["unstored"] += 1
        self.connection.blame(Closure.UNSTORED, f"a message was not stored: {error}")
        self.connection.close()

    def _flush_if_called(self) -> None:
        """Send now, unless this happens inside `data_received`, which does so at its end."""
        if not self._dispatching:
            self._replies.flush()

    # The slot's actions.

    def _act(self, action: Action) -> None:
        serves = self._serves
        if action is Action.WAIT:
            self._wait(serves.queue)
        elif action is Action.WAIT_DEAD:
            if serves.dead_letters is None:
                self._act(self._slot.on(Event.REFUSED))
            else:
                self._wait(serves.dead_letters)
        elif action is Action.REFUSE:
            self.connection.allow_silence(False)
            self._replies.begin().append(codec.NO_RECEIVE_PACKET)
        elif action is Action.WITHDRAW:
            self._withdraw()
        elif action in (Action.SETTLE, Action.SETTLE_DEAD):
            buffer, tag = self._take_held()
            buffer.deliveries.ack(tag)
            self._close_when_done()
        elif action in (Action.RETURN, Action.RETURN_DEAD):
            buffer, tag = self._take_held()
            if self._stopping:  # the server's doing: the message keeps its retries and its place
                buffer.deliveries.hand_back(tag)
            else:
                buffer.deliveries.give_back(tag, delay=0.0, error="the consumer disconnected")

    def _wait(self, buffer: PrefetchedQueue) -> None:
        if buffer.closed:
            self._serves.look_again(self._engine)
        if self._stopping or buffer.closed:
            self._act(self._slot.on(Event.REFUSED))
            return
        self._waits_in = buffer
        if buffer is self._serves.queue:
            self._receives = buffer
        self.connection.allow_silence(True)
        self._dispatching = True
        buffer.wait(self)
        self._dispatching = False

    def _withdraw(self) -> None:
        if self._waits_in is not None:
            self._waits_in.cancel(self)
            self._waits_in = None

    def _take_held(self) -> tuple[PrefetchedQueue, int]:
        held, self._held = self._held, None
        assert held is not None
        return held


def _attempts(retries: int) -> int:
    """The engine's limit of attempts for a retry counter."""
    return UNLIMITED if retries == MAX_RETRIES else deliveries_allowed(retries) or 1
