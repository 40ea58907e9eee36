"""One BlipMQ connection on the server: frames in, the engine's work, frames out (docs/protocols/blipmq.md).

`DISPATCH` has for each state and frame type the method that handles a batch of such frames. Batches are handled
strictly in order. A frame that cannot be answered at once (a key to look up, a subscription to make, a claim from the
store) blocks the session: it stops reading, keeps the batches behind, and goes on from there.

The first frame that names a topic decides in which process of this `runwire` the connection is served
(wire/net/process_group.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from queues.engine.api import Destination, EngineError, Publisher, QueueFull, QuotaExceeded
from queues.permissions.rules import Operation
from wire.blipmq import codec
from wire.blipmq.batches import BatchDecoder, FrameBatch
from wire.blipmq.codec import ACK, HEADER_SIZE, MAX_FRAME_SIZE, SUBSCRIBE
from wire.blipmq.delivery import TURN, DeliverySession
from wire.blipmq.handshake import patiently
from wire.blipmq.machine import TABLE, Action, Conversation, State, Success
from wire.net.connection import Connection, contained
from wire.net.limits import Closure
from wire.net.process_group import State as HandedState
from wire.server import Server
from wire.unconfirmed import Unconfirmed

#: The reason to read nothing more when the server stops.
STOPPING = "stopping"


class BlipMQSession(DeliverySession):
    """The server's side of one connection."""

    def __init__(self, connection: Connection, server: Server, max_frame: int = MAX_FRAME_SIZE) -> None:
        super().__init__(connection, server)
        self._server = server
        self._decoder: BatchDecoder = BatchDecoder(max_frame)
        self._conversation = Conversation()
        self._handlers = DISPATCH[self._conversation.state]
        self._unconfirmed: Unconfirmed | None = None
        #: Of the last PUBLISH that was looked at closely: where it went, and how its payload begins.
        self._publisher: Publisher | None = None
        self._prefix = b""

    # Called by the connection.

    def resume(self, state: HandedState) -> None:
        """Go on behind AUTH. The key is looked up again: it may have been revoked meanwhile."""
        self._process_group = None
        self._advance(Success.HELLO_ACCEPTED)
        self.client.continue_since(state["since"])
        self.connection.handshake_done()
        self._block(self._show_key_again(state["key"]))

    def data_received(self, data: bytes) -> None:
        batches = self._decoder.feed(data)
        if self._blocked:
            self._behind += batches
            self._behind_bytes += len(data)
            self.connection.hold(self._decoder.pending + self._behind_bytes)
            return
        self._behind_bytes = len(data)
        self._waiting.deadline = None
        self._run(batches)

    def eof_received(self) -> bool:
        """Answer all frames before the end, then close."""
        self._draining = True
        self._close_when_done()
        return True

    def connection_lost(self) -> None:
        self._leave()
        self._waiting.stop()
        self._polled.leave(self, count=not self.connection.listener.stopping)
        self._handshake.forget(self)

    def drain(self) -> None:
        self._draining = True
        self.connection.pause_reading(STOPPING)
        self._close_when_done()

    def overfull(self) -> None:
        self._nack(self._decoder.correlation_id, codec.OVERFULL)
        self._replies.flush()

    def _at_work(self) -> bool:
        return self._blocked

    # Called by the engine.

    def holds(self) -> tuple[int, int]:
        """Unacknowledged messages of the subscriptions that it consumes from, and bytes held."""
        return sum(self.consumes().values()), self.connection.held_bytes

    def consumes(self) -> dict[int, int]:
        """The queues of the first subscriptions that it polls, and the unacknowledged messages of each."""
        return self._polled.unacknowledged()

    @contained
    def publish_failed(self, token: int, error: EngineError) -> None:
        """A PUBLISH was not stored; `token` is its correlation id."""
        full = isinstance(error, QueueFull)
        reject = codec.QUEUE_FULL if full else codec.durable_publish_failed(str(error))
        self.connection.write(codec.encode_nack(token, *reject))

    # Frames.

    def _run(self, batches: list[FrameBatch]) -> None:
        """Handle frames until all are done, one blocks, or it is time to let others have a turn."""
        at, left = 0, TURN
        while at < len(batches) and not self._blocked:
            batch = batches[at]
            if not left:
                self._start_blocking()
                self._loop.call_soon(self._unblock)
                break
            if self._late and batch.kind != ACK:  # the answers to these must leave first
                self._block(self._settle_late())
                break
            left -= 1
            try:
                done = self._handlers[batch.kind](self, batch)
            except codec.PayloadError as error:
                done = self._nack_all(batch, error.reject)
            if done == len(batch.cids):
                at += 1
            else:
                batches[at] = batch.after(done)
        if self._late and not self._blocked:
            self._block(self._settle_late())
        self._finish_run(batches[at:])

    def _finish_run(self, behind: list[FrameBatch]) -> None:
        """Send the answers, keep what is behind a frame that blocks, and refuse bytes that are not BlipMQ."""
        self._replies.flush()
        if self._blocked:
            self._behind = behind
        elif self._decoder.error is not None:
            self.connection.blame(Closure.PROTOCOL, self._decoder.error)
            self._draining = True
        elif self._conversation.state is not State.READY and self._decoder.expected > codec.MAX_HANDSHAKE_SIZE:
            self._nack(self._decoder.correlation_id, codec.UNAUTHENTICATED)
            self._replies.flush()
            self.connection.blame(Closure.PROTOCOL, f"a frame of {self._decoder.expected} bytes before AUTH")
            self._draining = True
        self.connection.hold(self._decoder.pending + (self._behind_bytes if self._blocked else 0))
        if self._unconfirmed is not None and self._replies.batch == self._engine.open_batch:
            self._unconfirmed.add(self.connection, self._behind_bytes)
        if self._draining:
            self._close_when_done()

    # The handlers of DISPATCH. Each returns the number of frames of the batch that are done. They may raise
    # PayloadError, which answers all frames of the batch.

    def _publish(self, batch: FrameBatch) -> int:
        """PUBLISHes. Those with the QoS and topic of the last ones need no closer look."""
        if batch.common != self._prefix or self._publisher is None:
            return self._publish_first(batch)
        count = len(batch.cids)
        self.client.published(count)
        self._replies.follow_batch(self._publisher.publish_many(batch.bodies, self, batch.cids))
        self._engine.check_saturation()
        return count

    def _publish_first(self, batch: FrameBatch) -> int:
        """PUBLISHes whose QoS and topic have to be looked at."""
        qos, topic, _ = codec.parse_publish(batch.common)
        if not self._handshake.allows(Operation.PUBLISH, topic):
            self._engine.counts.forbidden += len(batch.cids)
            return self._nack_all(batch, codec.FORBIDDEN)
        if (owner := self._other_owner(topic)) is not None:
            self._block(self._move_publisher(owner, batch))
            return len(batch.cids)
        publisher = self._engine.publisher(Destination("topic", topic), self._handshake.key_id)
        if qos:  # nearly always the next PUBLISH has the same topic
            self._publisher, self._prefix, self._has_published = publisher, batch.common, True
            return self._publish(batch)
        self.client.published(len(batch.cids))
        for cid, body in zip(batch.cids, batch.bodies, strict=True):
            self._replies.follow_batch(publisher.publish_transient(body, self, cid))
        self._engine.check_saturation()
        return len(batch.cids)

    def _negotiate(self, batch: FrameBatch) -> int:
        """HELLO."""
        if codec.parse_hello(batch.common) == codec.PROTOCOL_VERSION:
            self._advance(Success.HELLO_ACCEPTED)
            self._say(codec.encode_ack(batch.cids[0], 0))
        else:
            self._block(self._refuse(batch.cids[0], codec.UNSUPPORTED_VERSION))
        return 1

    def _authenticate(self, batch: FrameBatch) -> int:
        """AUTH."""
        self._block(self._check_key(batch.cids[0], codec.parse_auth(batch.common)))
        return 1

    def _subscribe(self, batch: FrameBatch) -> int:
        """SUBSCRIBE."""
        topic, qos = codec.parse_subscribe(batch.common)
        if not self._handshake.allows(Operation.CONSUME, topic):
            return self._nack_all(batch, codec.FORBIDDEN)
        self._block(self._make_subscription(batch.cids[0], topic, qos))
        return 1

    def _pong(self, batch: FrameBatch) -> int:
        """PING: the answer is a barrier."""
        self._replies.begin(barrier=True).append(codec.encode_pong(batch.cids[0]))
        return 1

    def _ignore(self, batch: FrameBatch) -> int:
        """NACK and PONG."""
        return len(batch.cids)

    # In another process.

    async def _move_publisher(self, owner: int, first: FrameBatch) -> None:
        if not await self._move(owner, first):
            self._behind.insert(0, first)

    # Frames that block the session.

    async def _refuse(self, cid: int, reject: codec.Reject) -> None:
        await self._handshake.penalty()
        self._nack(cid, reject)

    async def _check_key(self, cid: int, key: str) -> None:
        reject = await self._handshake.authenticate(key, self)
        if reject is codec.INVALID_API_KEY:
            await self._refuse(cid, reject)
        elif reject is not None:
            self._nack(cid, reject)
        else:
            self._begin()
            self.connection.handshake_done()
            self._say(codec.encode_ack(cid, 0))

    async def _show_key_again(self, key: str) -> None:
        """As AUTH, which has been answered. A key that is no longer good, or has too many connections by now, ends this
        one."""
        if await self._handshake.authenticate(key, self) is None:
            self._begin()
        else:
            self.connection.abort()

    def _begin(self) -> None:
        """The key is accepted."""
        key = self._handshake.key_id
        if self._process_group is None:
            self._handshake.take_key()
        self._unconfirmed = self._server.unconfirmed.of(key)
        self.connection.name_key(key)
        self.client.identify(key)
        self._advance(Success.AUTHENTICATED)

    def _advance(self, success: Success) -> None:
        self._conversation.succeeded(success)
        self._handlers = DISPATCH[self._conversation.state]

    async def _make_subscription(self, cid: int, topic: bytes, qos: int) -> None:
        owner = self._other_owner(topic)
        payload = codec.encode_subscribe(cid, topic, qos)[HEADER_SIZE:]
        if owner is not None and await self._move(owner, FrameBatch(SUBSCRIBE, payload, [cid], [])):
            return
        create, key = self._engine.subscriptions.create, self._handshake.key_id
        try:
            subscription = await patiently(self._engine, lambda: create(topic, qos, key))
        except QuotaExceeded as error:
            self._server.over_quota["subscriptions"] += 1
            self._nack(cid, codec.Reject(503, str(error)))
            return
        except EngineError as error:
            self._nack(cid, codec.Reject(500, str(error)))
            return
        self._polled.remember(subscription, self)
        self._say(codec.encode_ack(cid, subscription.id))



Handler = Callable[[Any, FrameBatch], int]

#: The method of each action.
ACTIONS: Final[Mapping[Action, Handler]] = {
    Action.NEGOTIATE: BlipMQSession._negotiate,
    Action.AUTHENTICATE: BlipMQSession._authenticate,
    Action.PUBLISH: BlipMQSession._publish,
    Action.SUBSCRIBE: BlipMQSession._subscribe,
    Action.SETTLE: BlipMQSession._ack,
    Action.POLL: BlipMQSession._poll,
    Action.PONG: BlipMQSession._pong,
    Action.IGNORE: BlipMQSession._ignore,
}


def _handler(action: Action | codec.Reject) -> Handler:
    return ACTIONS[action] if isinstance(action, Action) else partial(BlipMQSession._nack_all, reject=action)


#: The handler of each frame type, by state: the table of the conversation.
DISPATCH: Final[Mapping[State, Mapping[int, Handler]]] = {
    state: {int(kind): _handler(action) for kind, action in row.items()} for state, row in TABLE.items()
}
