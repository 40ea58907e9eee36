"""One BlipMQ connection on the server: frames in, the engine's work, frames out (docs/protocols/blipmq.md).

Frames are handled strictly in order. A frame that cannot be answered at once (a key to look up, a subscription to
make, a claim from the store) blocks the session: it stops reading, keeps the frames behind, and goes on from there.

The first frame that names a topic decides in which process of this `runwire` the connection is served
(wire/net/siblings.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import TypeVar

from queues.engine import (
    Destination,
    EngineError,
    Grant,
    LocalSubscription,
    PayloadPart,
    Publisher,
    QueueFull,
    QuotaExceeded,
    StoreUnavailable,
)
from queues.reach import Operation, Protocol
from wire.blipmq import codec
from wire.blipmq.codec import ACK, HEADER_SIZE, MAX_FRAME_SIZE, MIN_LENGTH, POLL, PUBLISH, SUBSCRIBE
from wire.blipmq.machine import Action, Conversation, State, Success
from wire.blipmq.runs import Run, RunDecoder, SharedDeliveries, encode_deliveries
from wire.net.connection import Connection, contained
from wire.net.limits import Closure
from wire.net.siblings import State as HandedState
from wire.server import Server
from wire.session import WireSession
from wire.unconfirmed import Unconfirmed

#: Seconds that the POLLs of one read may wait for claims from the store, in all, before they count as "no message":
#: a client acknowledges what a burst brought only when it has seen the burst's end.
POLL_PATIENCE = 0.02
#: Seconds between two questions to a store that is away.
STORE_RETRY = 0.05
#: The reason to read nothing more when the server stops.
STOPPING = "stopping"
#: Runs of frames of one kind that are handled before other connections have a turn.
TURN = 500

#: The reason of a dead letter that came by another protocol or a route and fits no frame.
TOO_LARGE = "larger than a BlipMQ frame"
#: Subscriptions that one connection remembers.
MOST_POLLED = 100_000
#: Subscriptions of one connection that operators are told of.
MOST_LOOKED = 100


T = TypeVar("T")


class Polled:
    """A subscription that this connection polls."""

    __slots__ = ("buffer", "prefix", "subscription", "transient")

    def __init__(self, subscription: LocalSubscription) -> None:
        self.subscription = subscription
        self.buffer = subscription.buffer
        #: QoS 0 messages; always the same deque.
        self.transient = subscription.transient
        self.prefix = codec.delivery_prefix(1, subscription.topic)


class BlipMQSession(WireSession):
    """The server's side of one connection."""

    def __init__(self, connection: Connection, server: Server, max_frame: int = MAX_FRAME_SIZE) -> None:
        super().__init__(connection, server.engine, Protocol.BLIPMQ)
        self._server = server
        self._decoder: RunDecoder = RunDecoder(max_frame)
        self._conversation = Conversation()
        self._grant: Grant | None = None
        #: Until the first topic is known: where the connection may be handed over, and the API key to show there.
        self._siblings = server.siblings
        self._key = ""
        self._unconfirmed: Unconfirmed | None = None
        #: The number of further runs in this turn.
        self._turn = 0
        #: The POLL that waits for a claim or a commit, and until when.
        self._waiting: tuple[int, Polled] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: When the POLLs of this read have waited long enough in all; None while none has waited.
        self._patience_ends: float | None = None
        #: Of the last PUBLISH that was looked at closely: where it went, and how its payload begins.
        self._publisher: Publisher | None = None
        self._prefix = b""
        #: By the payload of POLL and ACK, the subscription's id as it is on the wire.
        self._polled: dict[bytes, Polled] = {}
        #: ACKs with tags that are not outstanding here: subscription id, tags.
        self._late: list[tuple[int, Sequence[int]]] = []

    # Called by the connection.

    def resume(self, state: HandedState) -> None:
        """Go on behind AUTH. The key is looked up again: it may have been revoked meanwhile."""
        self._siblings = None
        self._conversation.succeeded(Success.HELLO_ACCEPTED)
        self.client.continue_since(state["since"])
        self.connection.handshake_done()
        self._block(self._show_key_again(state["key"]))

    def data_received(self, data: bytes) -> None:
        runs = self._decoder.feed(data)
        if self._blocked:
            self._behind += runs
            self._behind_bytes += len(data)
            self.connection.hold(self._decoder.pending + self._behind_bytes)
            return
        self._behind_bytes = len(data)
        self._patience_ends = None
        self._run(runs)

    def eof_received(self) -> bool:
        """Answer all frames before the end, then close."""
        self._draining = True
        self._close_when_done()
        return True

    def connection_lost(self) -> None:
        self._leave()
        self._stop_waiting()
        self._poll_no_more()
        if self._grant is not None:
            self._server.by_key.forget(self._grant.id, self)

    def _poll_no_more(self) -> None:
        """It polls no more what it has polled. What it has not acknowledged of a queue with a single active consumer
        goes back in place."""
        for known in self._polled.values():
            known.buffer.leave(self, count=not self.connection.listener.stopping, keep_tags=True)

    def drain(self) -> None:
        self._draining = True
        self.connection.pause_reading(STOPPING)
        self._close_when_done()

    def overfull(self) -> None:
        self._nack(self._decoder.correlation_id, codec.OVERFULL)
        self._replies.flush()

    def _at_work(self) -> bool:
        return self._blocked

    # Called by the server and the engine.

    def holds(self) -> tuple[int, int]:
        """Unacknowledged messages of the subscriptions that it consumes from, and bytes held."""
        return sum(self.consumes().values()), self.connection.held_bytes

    def consumes(self) -> dict[int, int]:
        """The queues of the first `MOST_LOOKED` subscriptions that it polls, and the unacknowledged messages of each.
        Other clients of the key may have polled some of these."""
        polled = islice(self._polled.values(), MOST_LOOKED)
        return {known.buffer.id: len(known.buffer.unacked) for known in polled}

    @contained
    def publish_failed(self, token: int, error: EngineError) -> None:
        """A PUBLISH was not stored; `token` is its correlation id."""
        full = isinstance(error, QueueFull)
        reject = codec.QUEUE_FULL if full else codec.durable_publish_failed(str(error))
        self.connection.write(codec.encode_nack(token, *reject))

    # Frames.

    def _run(self, runs: list[Run]) -> None:
        """Handle frames until all are done, one blocks, or it is time to let others have a turn."""
        at, self._turn = 0, TURN
        while at < len(runs) and not self._blocked:
            if self._conversation.state is State.READY:
                at = self._serve(runs, at)
            else:
                runs[at : at + 1] = runs[at].alone()
                self._handle(*next(runs[at].frames()))
                at += 1
        if self._late and not self._blocked:
            self._block(self._settle_late())
        self._replies.flush()
        if self._blocked:
            self._behind = runs[at:]
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

    def _serve(self, runs: list[Run], at: int) -> int:
        """Handle runs from `at` on; returns how many are done when one blocks, or all."""
        while at < len(runs) and not self._blocked:
            if not self._turn:
                self._start_blocking()
                self._loop.call_soon(self._unblock)
                return at
            self._turn -= 1
            run = runs[at]
            if run.kind == ACK:
                done = self._ack(run)
            elif self._late:  # the answers to these must leave first
                self._block(self._settle_late())
                return at
            elif run.kind == POLL:
                done = self._poll(run)
            elif run.kind == PUBLISH:
                done = self._publish(run)
            else:
                self._handle(run.kind, run.cids[0], run.common)
                done = 1
            if done == len(run):
                at += 1
            else:
                runs[at] = run.after(done)
        return at

    # The hot path: each handles frames of a run, and returns how many of them are done.

    def _publish(self, run: Run) -> int:
        """PUBLISHes. Those with the QoS and topic of the last ones need no closer look."""
        if run.common != self._prefix or self._publisher is None:
            return self._publish_first(run)
        self.client.published(len(run))
        self._replies.follow_batch(self._publisher.publish_many(run.bodies, self, run.cids))
        self._engine.check_saturation()
        return len(run)

    def _ack(self, run: Run) -> int:
        """ACKs of one subscription."""
        known = self._polled.get(run.common)
        assert self._grant is not None
        unknown = run.cids if known is None else known.buffer.ack_many(run.cids, self._grant.id)
        self._engine.check_saturation()
        if unknown and not self._ack_unknown(unknown, run.common):
            return 0
        return len(run)

    def _poll(self, run: Run) -> int:
        """POLLs of one subscription."""
        done = 0
        while done < min(len(run), TURN) and not self._blocked:
            known = self._polled.get(run.common)
            if known is not None and not known.transient:
                break
            self._poll_one(run.cids[done], run.common)
            done += 1
        return done or self._poll_many(run, self._polled[run.common])

    def _poll_many(self, run: Run, known: Polled) -> int:
        """POLLs of a subscription that has no QoS 0 message."""
        out, buffer, count = self._replies.begin(), known.buffer, len(run)
        assert self._grant is not None
        done = 0
        for tags, bodies in buffer.deliver_many(monotonic(), count, self._grant.id, self):
            done += len(tags)
            largest = bodies.largest if isinstance(bodies, PayloadPart) else max(map(len, bodies))
            if largest <= MAX_FRAME_SIZE - MIN_LENGTH - len(known.prefix):
                out.append(_encode(tags, known.prefix, bodies))
            else:
                self._deliver_fitting(known, tags, bodies)
        self.client.delivered(done)
        if done < count and self._may_come(known, soon=done == 0):
            self._await_message(run.cids[done], known)
            return done + 1
        return count

    def _deliver_fitting(self, known: Polled, tags: Sequence[int], bodies: list[bytes]) -> None:
        """Deliver those that fit into a frame."""
        for tag, body in zip(tags, bodies, strict=True):
            try:
                self._say(codec.encode_delivery(tag, known.prefix, body))
            except codec.FrameTooLarge:
                known.buffer.bury(tag, TOO_LARGE)

    def _handle(self, kind: int, cid: int, payload: bytes) -> None:
        """A frame before the handshake is complete, or one that goes with no others."""
        action = self._conversation.on(kind)
        try:
            if action is Action.NEGOTIATE:
                if codec.parse_hello(payload) == codec.PROTOCOL_VERSION:
                    self._conversation.succeeded(Success.HELLO_ACCEPTED)
                    self._say(codec.encode_ack(cid, 0))
                else:
                    self._block(self._refuse(cid, codec.UNSUPPORTED_VERSION))
            elif action is Action.AUTHENTICATE:
                self._block(self._authenticate(cid, codec.parse_auth(payload)))
            elif action is Action.PONG:
                self._replies.begin(barrier=True).append(codec.encode_pong(cid))
            elif action is Action.SUBSCRIBE:
                self._subscribe(cid, *codec.parse_subscribe(payload))
            elif isinstance(action, codec.Reject):
                self._nack(cid, action)
        except codec.PayloadError as error:
            self._nack(cid, error.reject)

    def _publish_first(self, run: Run) -> int:
        """PUBLISHes whose QoS and topic have to be looked at: one of them, if those behind need no closer look."""
        assert self._grant is not None
        try:
            qos, topic, _ = codec.parse_publish(run.common)
        except codec.PayloadError as error:
            self._nack_all(run, error.reject)
            return len(run)
        if not self._grant.may(Protocol.BLIPMQ, Operation.PUBLISH, "topic", topic):
            self._nack_all(run, codec.FORBIDDEN)
            return len(run)
        if (home := self._other_home(topic)) is not None:
            self._block(self._move_publisher(home, run))
            return len(run)
        publisher = self._engine.publisher(Destination("topic", topic), self._grant.id)
        if qos:  # nearly always the next PUBLISH has the same topic
            self._publisher, self._prefix = publisher, run.common
            return self._publish(run)
        self.client.published(len(run))
        for cid, body in zip(run.cids, run.bodies, strict=True):
            self._replies.follow_batch(publisher.publish_transient(body, self, cid))
        self._engine.check_saturation()
        return len(run)

    def _nack_all(self, run: Run, reject: codec.Reject) -> None:
        for cid in run.cids:
            self._nack(cid, reject)

    def _may_consume(self, topic: bytes) -> bool:
        assert self._grant is not None
        return self._grant.may(Protocol.BLIPMQ, Operation.CONSUME, "topic", topic)

    def _subscribe(self, cid: int, topic: bytes, qos: int) -> None:
        if not self._may_consume(topic):
            self._nack(cid, codec.FORBIDDEN)
            return
        self._block(self._make_subscription(cid, topic, qos))

    # In another process.

    def _other_home(self, topic: bytes) -> int | None:
        """The process that is to go on with this connection, whose first topic this is; None: this one."""
        if (siblings := self._siblings) is None:
            return None
        home = siblings.elsewhere("topic", topic)
        if home is None or self._publisher is not None or self._polled or self._late:
            self._siblings, self._key = None, ""
            return None
        return home

    async def _move(self, home: int, first: Run) -> bool:
        """Hand the connection over, if that process takes it; `first` are the frames that come next."""
        siblings, grant = self._siblings, self._grant
        assert siblings is not None
        assert grant is not None
        state = {"key": self._key, "grant": grant.id, "since": self.client.since}
        self._siblings, self._key = None, ""

        return await self._hand_over(siblings, home, state, lambda: self._frames(first))

    def _frames(self, first: Run) -> Iterator[bytes]:
        """The frames that are not handled yet."""
        return (codec.encode(*frame) for run in (first, *self._behind) for frame in run.frames())

    async def _move_publisher(self, home: int, first: Run) -> None:
        if not await self._move(home, first):
            self._behind.insert(0, first)

    # Frames that block the session.

    def _poll_one(self, cid: int, payload: bytes) -> None:
        """A POLL that memory alone cannot answer: an unknown id, a QoS 0 message, or a claim under way."""
        try:
            id = codec.parse_poll(payload)
        except codec.PayloadError as error:
            self._nack(cid, error.reject)
            return
        known = self._polled.get(payload)
        if known is None:
            self._block(self._look_up(cid, id, payload))
        elif not self._deliver_one(cid, known):
            if self._may_come(known):
                self._await_message(cid, known)
            elif known.transient and known.buffer.serves(self):
                self._deliver_transient(cid, known)

    def _deliver_transient(self, cid: int, known: Polled) -> None:
        topic = codec.delivery_prefix(0, known.subscription.topic)
        known.buffer.note_demand(monotonic())
        self.client.delivered(1)
        self._say(codec.encode_delivery(cid, topic, known.subscription.take_transient()))

    def _may_come(self, known: Polled, soon: bool = True) -> bool:
        """Return whether a POLL that found nothing should wait: for a claim, for this connection's own publishes, and,
        if no other answer is due, for a commit under way. One late answer is better than many empty ones.
        """
        if self._patience_ends is not None and monotonic() >= self._patience_ends:
            return False
        buffer = known.buffer
        storing = soon and buffer.backlog.storing
        return buffer.may_refill_for(self) or storing or self._engine.holds(self._replies.batch)

    def _await_message(self, cid: int, known: Polled) -> None:
        """Wait for the claim that the buffer has asked for, or for the commit of our own publishes, but not long."""
        self._start_blocking()
        self._waiting = cid, known
        if self._patience_ends is None:
            self._patience_ends = monotonic() + POLL_PATIENCE
        left = self._patience_ends - monotonic()
        self._timer = self._loop.call_later(max(0.0, left), self._give_up_waiting)
        self._wait_on()

    def _wait_on(self) -> None:
        assert self._waiting is not None
        if self._engine.holds(self._replies.batch):
            self._engine.hold(self)
        else:
            self._waiting[1].buffer.on_refill(self._refilled)

    @contained
    def release(self) -> None:
        """A batch was committed: it may have held the message that is polled, and comes to memory next."""
        if self._waiting is not None and not self._engine.holds(self._replies.batch):
            self._engine.unhold(self)
            self._loop.call_soon(self._committed)

    @contained
    def _committed(self) -> None:
        if self._waiting is not None and not self._engine.holds(self._replies.batch):
            self._look_again(self._waiting[1].buffer.may_refill_for(self))

    @contained
    def _refilled(self) -> None:
        self._look_again(False)

    def _look_again(self, more: bool) -> None:
        """Answer the waiting POLL, with silence unless there is `more` to wait for."""
        if self._waiting is None:
            return
        if self._deliver_one(*self._waiting, last=not more) or not more:
            self._stop_waiting()
            self._unblock()
        else:
            self._wait_on()

    @contained
    def _give_up_waiting(self) -> None:
        """No claim came back in time: the other POLLs of this read do not wait either."""
        self._patience_ends = 0.0
        self._look_again(False)

    def _stop_waiting(self) -> None:
        self._waiting = None
        self._engine.unhold(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver_one(self, cid: int, known: Polled, last: bool = False) -> bool:
        """Answer a POLL from memory, in order of arrival for both QoS; return whether there was a message.

        With `last` a QoS 0 message waits no longer for older ones that are in the store.
        """
        if known.transient and (last or known.subscription.transient_is_next) and known.buffer.serves(self):
            self._deliver_transient(cid, known)
            return True
        assert self._grant is not None
        delivery = known.buffer.deliver(monotonic(), True, self._grant.id, self)
        if delivery is None:
            return False
        self.client.delivered(1)
        try:
            self._say(codec.encode_delivery(delivery[0], known.prefix, delivery[1]))
        except codec.FrameTooLarge:
            known.buffer.bury(delivery[0], TOO_LARGE)
        return True

    async def _look_up(self, cid: int, id: int, payload: bytes) -> None:
        """The first POLL of a subscription on this connection. One that may not be polled stays silent."""
        try:
            subscription = await self._subscription(id)
        except StoreUnavailable:
            return
        if subscription is None:
            return
        assert self._grant is not None
        if not self._may_consume(subscription.topic):
            self._nack(cid, codec.FORBIDDEN)
            return
        home = self._other_home(subscription.topic)
        if home is not None and await self._move(home, Run(POLL, payload, [cid], [])):
            return
        known = self._remember(payload, subscription)
        if not self._deliver_one(cid, known) and self._may_come(known):
            self._await_message(cid, known)

    async def _subscription(self, id: int) -> LocalSubscription | None:
        subscriptions = self._engine.subscriptions
        return None if subscriptions.unknown(id) else await subscriptions.load(id)

    def _remember(self, payload: bytes, subscription: LocalSubscription) -> Polled:
        if len(self._polled) >= MOST_POLLED:
            self._poll_no_more()
            self._polled.clear()
        known = self._polled[payload] = Polled(subscription)
        return known

    def _ack_unknown(self, tags: Sequence[int], payload: bytes) -> bool:
        """Tags that are not outstanding here: look for them in the store, together with those that follow.

        False when that of earlier ones must be done first.
        """
        try:
            id = codec.parse_ack(payload)
        except codec.PayloadError as error:
            if self._late:
                self._block(self._settle_late())
                return False
            for tag in tags:
                self._nack(tag, error.reject)
        else:
            self._late.append((id, tags))
        return True

    async def _settle_late(self) -> None:
        late = self._late[:]
        self._late.clear()
        for id, tags in late:
            await self._settle_late_of(id, tags)

    async def _settle_late_of(self, id: int, tags: Sequence[int]) -> None:
        assert self._grant is not None
        key = self._grant.id
        try:
            subscription = await self._patiently(lambda: self._subscription(id))
            unknown, reject = set(tags), codec.UNKNOWN_DELIVERY
            if subscription is not None and not self._may_consume(subscription.topic):
                reject = codec.FORBIDDEN
            elif subscription is not None:
                self._remember(codec.U64.pack(id), subscription)
                tags = subscription.buffer.ack_many(tags, key)
                settle = self._engine.subscriptions.ack_late
                unknown = await self._patiently(lambda: settle(subscription, tags, key))
        except StoreUnavailable:
            return  # it comes again; nothing is lost
        for tag in tags:
            if tag in unknown:
                self._nack(tag, reject)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, and again while it is away: until then the client is not read. Raises StoreUnavailable."""
        deadline = monotonic() + self._engine.options.publish_timeout
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                if monotonic() > deadline:
                    raise
                await asyncio.sleep(STORE_RETRY)

    async def _authenticate(self, cid: int, key: str) -> None:
        try:
            grant = await self._grant_of(key)
        except StoreUnavailable as error:
            self._nack(cid, codec.Reject(500, str(error)))
            return
        if grant is None:
            await self._refuse(cid, codec.INVALID_API_KEY)
            return
        if not self._server.admit(grant.id, self):
            self._nack(cid, codec.TOO_MANY_CONNECTIONS)
            return
        if self._siblings is not None:
            self._key = key
        self._begin(grant)
        self.connection.handshake_done()
        self._say(codec.encode_ack(cid, 0))

    async def _show_key_again(self, key: str) -> None:
        """As AUTH, which has been answered. A key that is no longer good, or has too many connections by now, ends this
        one."""
        try:
            grant = await self._grant_of(key)
        except StoreUnavailable:
            grant = None
        if grant is None or not self._server.admit(grant.id, self):
            self.connection.abort()
        else:
            self._begin(grant)

    async def _grant_of(self, key: str) -> Grant | None:
        address = self.connection.peer[0]
        return await self._patiently(lambda: self._engine.authenticate(key, Protocol.BLIPMQ, address))

    def _begin(self, grant: Grant) -> None:
        self._grant = grant
        self._unconfirmed = self._server.unconfirmed.of(grant.id)
        self.connection.name_key(grant.id)
        self.client.identify(grant.id)
        self._conversation.succeeded(Success.AUTHENTICATED)

    async def _refuse(self, cid: int, reject: codec.Reject) -> None:
        """Refuse a version or a key; an address that goes on trying waits longer and longer."""
        await asyncio.sleep(self._server.throttle.failed(self.connection.peer[0]))
        self._nack(cid, reject)

    async def _make_subscription(self, cid: int, topic: bytes, qos: int) -> None:
        assert self._grant is not None
        home = self._other_home(topic)
        payload = codec.encode_subscribe(cid, topic, qos)[HEADER_SIZE:]
        if home is not None and await self._move(home, Run(SUBSCRIBE, payload, [cid], [])):
            return
        try:
            owner = self._grant.id
            subscription = await self._patiently(lambda: self._engine.subscriptions.create(topic, qos, owner))
        except QuotaExceeded as error:
            self._server.over_quota["subscriptions"] += 1
            self._nack(cid, codec.Reject(503, str(error)))
            return
        except EngineError as error:
            self._nack(cid, codec.Reject(500, str(error)))
            return
        self._remember(codec.U64.pack(subscription.id), subscription)
        self._say(codec.encode_ack(cid, subscription.id))

    def _say(self, data: bytes) -> None:
        self._replies.begin().append(data)

    def _nack(self, cid: int, reject: codec.Reject) -> None:
        self._say(codec.encode_nack(cid, *reject))


def _encode(tags: Sequence[int], prefix: bytes, bodies: list[bytes]) -> bytes | bytearray:
    """Deliveries as frames; if other subscribers are given the same, they are encoded once."""
    if not isinstance(bodies, PayloadPart):
        return encode_deliveries(tags, prefix, bodies)
    if isinstance(bodies.made, SharedDeliveries) and (frames := bodies.made.to(tags, prefix)) is not None:
        return frames
    bodies.made = made = SharedDeliveries(tags, prefix, bodies)
    return made.frames
