"""One BlipMQ connection on the server: frames in, the engine's work, frames out (docs/protocols/blipmq.md).

`DISPATCH` has for each state and frame type the method that handles a batch of such frames. Batches are handled
strictly in order. A frame that cannot be answered at once (a key to look up, a subscription to make, a claim from the
store) blocks the session: it stops reading, keeps the batches behind, and goes on from there.

The first frame that names a topic decides in which process of this `runwire` the connection is served
(wire/net/process_group.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from queues.engine.api import (
    Destination,
    EngineError,
    LocalSubscription,
    PayloadPart,
    Publisher,
    QueueFull,
    QuotaExceeded,
    StoreUnavailable,
)
from queues.permissions.rules import Operation, Protocol
from wire.blipmq import codec
from wire.blipmq.batches import BatchDecoder, FrameBatch, SharedDeliveries, encode_deliveries
from wire.blipmq.codec import ACK, HEADER_SIZE, MAX_FRAME_SIZE, MIN_LENGTH, POLL, SUBSCRIBE
from wire.blipmq.handshake import Handshake, patiently
from wire.blipmq.machine import TABLE, Action, Conversation, State, Success
from wire.blipmq.subscriptions import Polled, PolledSubscriptions
from wire.blipmq.waiting import WaitingPoll
from wire.net.connection import Connection, contained
from wire.net.limits import Closure
from wire.net.process_group import State as HandedState
from wire.server import Server
from wire.session import WireSession
from wire.unconfirmed import Unconfirmed

#: The reason to read nothing more when the server stops.
STOPPING = "stopping"
#: Batches that are handled before other connections have a turn.
TURN = 500
#: The reason of a dead letter that came by another protocol or a route and fits no frame.
TOO_LARGE = "larger than a BlipMQ frame"


class BlipMQSession(WireSession):
    """The server's side of one connection."""

    def __init__(self, connection: Connection, server: Server, max_frame: int = MAX_FRAME_SIZE) -> None:
        super().__init__(connection, server.engine, Protocol.BLIPMQ)
        self._server = server
        self._decoder: BatchDecoder = BatchDecoder(max_frame)
        self._conversation = Conversation()
        self._handlers = DISPATCH[self._conversation.state]
        self._handshake = Handshake(server, connection.peer[0])
        #: Until the first topic is known: where the connection may be handed over.
        self._process_group = server.process_group
        self._unconfirmed: Unconfirmed | None = None
        self._waiting = WaitingPoll(connection, self._engine, self._replies)
        #: Of the last PUBLISH that was looked at closely: where it went, and how its payload begins.
        self._publisher: Publisher | None = None
        self._prefix = b""
        self._polled = PolledSubscriptions()
        #: ACKs with tags that are not outstanding here: subscription id, tags.
        self._late: list[tuple[int, Sequence[int]]] = []

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
        self._waiting.new_read()
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

    def _is_waiting(self) -> bool:
        return self._waiting.active

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
            if done == len(batch):
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
        self.client.published(len(batch))
        self._replies.follow_batch(self._publisher.publish_many(batch.bodies, self, batch.cids))
        self._engine.check_saturation()
        return len(batch)

    def _publish_first(self, batch: FrameBatch) -> int:
        """PUBLISHes whose QoS and topic have to be looked at."""
        qos, topic, _ = codec.parse_publish(batch.common)
        if not self._handshake.allows(Operation.PUBLISH, topic):
            return self._nack_all(batch, codec.FORBIDDEN)
        if (owner := self._other_owner(topic)) is not None:
            self._block(self._move_publisher(owner, batch))
            return len(batch)
        publisher = self._engine.publisher(Destination("topic", topic), self._handshake.key_id)
        if qos:  # nearly always the next PUBLISH has the same topic
            self._publisher, self._prefix = publisher, batch.common
            return self._publish(batch)
        self.client.published(len(batch))
        for cid, body in zip(batch.cids, batch.bodies, strict=True):
            self._replies.follow_batch(publisher.publish_transient(body, self, cid))
        self._engine.check_saturation()
        return len(batch)

    def _ack(self, batch: FrameBatch) -> int:
        """ACKs of one subscription. Tags that are not outstanding here are looked for in the store, together with
        those that follow."""
        known = self._polled.get(batch.common)
        unknown = batch.cids if known is None else known.buffer.ack_many(batch.cids, self._handshake.key_id)
        self._engine.check_saturation()
        if unknown:
            try:
                self._late.append((codec.parse_ack(batch.common), unknown))
            except codec.PayloadError:
                if not self._late:
                    raise
                self._block(self._settle_late())  # the answers to these must leave first
                return 0
        return len(batch)

    def _poll(self, batch: FrameBatch) -> int:
        """POLLs of one subscription."""
        done = 0
        while done < min(len(batch), TURN) and not self._blocked:
            known = self._polled.get(batch.common)
            if known is not None and not known.transient:
                break
            self._poll_one(batch.cids[done], batch.common)
            done += 1
        return done or self._poll_many(batch, self._polled[batch.common])

    def _poll_many(self, batch: FrameBatch, known: Polled) -> int:
        """POLLs of a subscription that has no QoS 0 message."""
        out, count, done = self._replies.begin(), len(batch), 0
        for tags, bodies in known.buffer.deliver_many(monotonic(), count, self._handshake.key_id, self):
            done += len(tags)
            largest = bodies.largest if isinstance(bodies, PayloadPart) else max(map(len, bodies))
            if largest <= MAX_FRAME_SIZE - MIN_LENGTH - len(known.prefix):
                out.append(_encode(tags, known.prefix, bodies))
            else:
                for tag, body in zip(tags, bodies, strict=True):
                    self._deliver_fitting(known, tag, body)
        self.client.delivered(done)
        if done < count and self._waiting.may_come(known, self, soon=done == 0):
            self._await_message(batch.cids[done], known)
            return done + 1
        return count

    def _poll_one(self, cid: int, payload: bytes) -> None:
        """A POLL that memory alone cannot answer: an unknown id, a QoS 0 message, or a claim under way."""
        id = codec.parse_poll(payload)
        known = self._polled.get(payload)
        if known is None:
            self._block(self._look_up(cid, id))
        elif not self.answer_poll(cid, known):
            if self._waiting.may_come(known, self):
                self._await_message(cid, known)
            elif known.transient and known.buffer.serves(self):
                self._deliver_transient(cid, known)

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
        return len(batch)

    def _nack_all(self, batch: FrameBatch, reject: codec.Reject) -> int:
        for cid in batch.cids:
            self._nack(cid, reject)
        return len(batch)

    # In another process.

    def _other_owner(self, topic: bytes) -> int | None:
        """The process that is to go on with this connection, whose first topic this is; None: this one."""
        if self._process_group is None:
            return None
        owner = self._process_group.other_owner("topic", topic)
        if owner is None or self._publisher is not None or self._polled or self._late:
            self._process_group = None
            self._handshake.take_key()
            return None
        return owner

    async def _move(self, owner: int, first: FrameBatch) -> bool:
        """Hand the connection over, if that process takes it; `first` are the frames that come next."""
        process_group, self._process_group = self._process_group, None
        assert process_group is not None
        state = {
            "key": self._handshake.take_key(),
            "grant": self._handshake.key_id,
            "since": self.client.since,
        }
        return await self._hand_over(process_group, owner, state, lambda: self._frames(first))

    def _frames(self, first: FrameBatch) -> Iterator[bytes]:
        """The frames that are not handled yet."""
        return (codec.encode(*frame) for batch in (first, *self._behind) for frame in batch.frames())

    async def _move_publisher(self, owner: int, first: FrameBatch) -> None:
        if not await self._move(owner, first):
            self._behind.insert(0, first)

    # Deliveries.

    def poll_is_over(self) -> None:
        """Go on behind the POLL that has waited."""
        self._unblock()

    def _await_message(self, cid: int, known: Polled) -> None:
        self._start_blocking()
        self._waiting.wait(cid, known, self)

    def answer_poll(self, cid: int, known: Polled, last: bool = False) -> bool:
        """Answer a POLL from memory, in order of arrival for both QoS; return whether there was a message.

        With `last` a QoS 0 message waits no longer for older ones that are in the store.
        """
        if known.transient and (last or known.subscription.transient_is_next) and known.buffer.serves(self):
            self._deliver_transient(cid, known)
            return True
        delivery = known.buffer.deliver(monotonic(), True, self._handshake.key_id, self)
        if delivery is None:
            return False
        self.client.delivered(1)
        self._deliver_fitting(known, delivery[0], delivery[1])
        return True

    def _deliver_transient(self, cid: int, known: Polled) -> None:
        topic = codec.delivery_prefix(0, known.subscription.topic)
        known.buffer.note_demand(monotonic())
        self.client.delivered(1)
        self._say(codec.encode_delivery(cid, topic, known.subscription.take_transient()))

    def _deliver_fitting(self, known: Polled, tag: int, body: bytes) -> None:
        """Deliver a message, if it fits into a frame."""
        try:
            self._say(codec.encode_delivery(tag, known.prefix, body))
        except codec.FrameTooLarge:
            known.buffer.bury(tag, TOO_LARGE)

    # Frames that block the session.

    async def _look_up(self, cid: int, id: int) -> None:
        """The first POLL of a subscription on this connection. One that may not be polled stays silent."""
        try:
            subscription = await self._subscription(id)
        except StoreUnavailable:
            return
        if subscription is None:
            return
        if not self._handshake.allows(Operation.CONSUME, subscription.topic):
            self._nack(cid, codec.FORBIDDEN)
            return
        owner = self._other_owner(subscription.topic)
        if owner is not None and await self._move(owner, FrameBatch(POLL, codec.U64.pack(id), [cid], [])):
            return
        known = self._polled.remember(subscription, self)
        if not self.answer_poll(cid, known) and self._waiting.may_come(known, self):
            self._await_message(cid, known)

    async def _subscription(self, id: int) -> LocalSubscription | None:
        subscriptions = self._engine.subscriptions
        return None if subscriptions.unknown(id) else await subscriptions.load(id)

    async def _settle_late(self) -> None:
        late = self._late[:]
        self._late.clear()
        for id, tags in late:
            await self._settle_late_of(id, tags)

    async def _settle_late_of(self, id: int, tags: Sequence[int]) -> None:
        key = self._handshake.key_id
        try:
            subscription = await patiently(self._engine, lambda: self._subscription(id))
            unknown, reject = set(tags), codec.UNKNOWN_DELIVERY
            if subscription is not None and not self._handshake.allows(Operation.CONSUME, subscription.topic):
                reject = codec.FORBIDDEN
            elif subscription is not None:
                self._polled.remember(subscription, self)
                tags = subscription.buffer.ack_many(tags, key)
                settle = self._engine.subscriptions.ack_late
                unknown = await patiently(self._engine, lambda: settle(subscription, tags, key))
        except StoreUnavailable:
            return  # it comes again; nothing is lost
        for tag in tags:
            if tag in unknown:
                self._nack(tag, reject)

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

    def _say(self, data: bytes) -> None:
        self._replies.begin().append(data)

    def _nack(self, cid: int, reject: codec.Reject) -> None:
        self._say(codec.encode_nack(cid, *reject))


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


def _encode(tags: Sequence[int], prefix: bytes, bodies: list[bytes]) -> bytes | bytearray:
    """Deliveries as frames; if other subscribers are given the same, they are encoded once."""
    if not isinstance(bodies, PayloadPart):
        return encode_deliveries(tags, prefix, bodies)
    if isinstance(bodies.made, SharedDeliveries) and (frames := bodies.made.to(tags, prefix)) is not None:
        return frames
    bodies.made = made = SharedDeliveries(tags, prefix, bodies)
    return made.frames
