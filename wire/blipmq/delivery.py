"""What a BlipMQ connection is sent: the answers to its POLLs, and to ACKs of messages that are not outstanding here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Final

from queues.engine.api import LocalSubscription, PayloadPart, StoreUnavailable
from queues.permissions.rules import Operation, Protocol
from wire.blipmq import codec
from wire.blipmq.batches import FrameBatch, SharedDeliveries, encode_deliveries
from wire.blipmq.codec import MAX_FRAME_SIZE, MIN_LENGTH, POLL
from wire.blipmq.handshake import Handshake, patiently
from wire.blipmq.subscriptions import Polled, PolledSubscriptions
from wire.blipmq.waiting import WaitingPoll
from wire.net.connection import Connection
from wire.server import Server
from wire.session import WireSession

#: Batches, or POLLs of one batch, that are handled before other connections have a turn.
TURN: Final = 500
#: The reason of a dead letter that came by another protocol or a route and fits no frame.
TOO_LARGE: Final = "larger than a BlipMQ frame"


class DeliverySession(WireSession):
    """The part of a session that delivers and settles messages. Handlers are those of `wire.blipmq.session`."""

    def __init__(self, connection: Connection, server: Server) -> None:
        super().__init__(connection, server.engine, Protocol.BLIPMQ)
        self._handshake = Handshake(server, connection.peer[0])
        #: Until the first topic is known: where the connection may be handed over.
        self._process_group = server.process_group
        self._waiting = WaitingPoll(connection, self._engine, self._replies)
        self._polled = PolledSubscriptions()
        #: ACKs with tags that are not outstanding here: subscription id, tags.
        self._late: list[tuple[int, Sequence[int]]] = []
        #: Whether the connection has published a message with QoS 1: then it stays in this process.
        self._has_published = False

    # Answers.

    def _other_owner(self, topic: bytes) -> int | None:
        """The process that is to go on with this connection, whose first topic this is; None: this one."""
        if self._process_group is None:
            return None
        owner = self._process_group.other_owner("topic", topic)
        if owner is None or self._has_published or self._polled or self._late:
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

    def _say(self, data: bytes) -> None:
        self._replies.begin().append(data)

    def _nack(self, cid: int, reject: codec.Reject) -> None:
        self._say(codec.encode_nack(cid, *reject))

    def _nack_all(self, batch: FrameBatch, reject: codec.Reject) -> int:
        """Answer all frames of a batch with a NACK; returns their number, as a handler does."""
        for cid in batch.cids:
            self._nack(cid, reject)
        return len(batch.cids)

    def _is_waiting(self) -> bool:
        return self._waiting.active

    # POLL.

    def _poll(self, batch: FrameBatch) -> int:
        """POLLs of one subscription."""
        done = 0
        while done < min(len(batch.cids), TURN) and not self._blocked:
            known = self._polled.get(batch.common)
            if known is not None and not known.transient:
                break
            self._poll_one(batch.cids[done], batch.common)
            done += 1
        return done or self._poll_many(batch, self._polled[batch.common])

    def _poll_many(self, batch: FrameBatch, known: Polled) -> int:
        """POLLs of a subscription that has no QoS 0 message."""
        out, count, done = self._replies.begin(), len(batch.cids), 0
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

    def _await_message(self, cid: int, known: Polled) -> None:
        self._start_blocking()
        self._waiting.wait(cid, known, self)

    def poll_is_over(self) -> None:
        """Go on behind the POLL that has waited."""
        self._unblock()

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
        known.buffer.interest.came(monotonic())
        self.client.delivered(1)
        self._say(codec.encode_delivery(cid, topic, known.subscription.take_transient()))

    def _deliver_fitting(self, known: Polled, tag: int, body: bytes) -> None:
        """Deliver a message, if it fits into a frame."""
        try:
            self._say(codec.encode_delivery(tag, known.prefix, body))
        except codec.FrameTooLarge:
            known.buffer.deliveries.bury(tag, TOO_LARGE)

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

    # ACK.

    def _ack(self, batch: FrameBatch) -> int:
        """ACKs of one subscription. Tags that are not outstanding here are looked for in the store, together with
        those that follow."""
        known = self._polled.get(batch.common)
        unknown = batch.cids if known is None else known.buffer.deliveries.ack_many(batch.cids, self._handshake.key_id)
        self._engine.check_saturation()
        if unknown:
            try:
                self._late.append((codec.parse_ack(batch.common), unknown))
            except codec.PayloadError:
                if not self._late:
                    raise
                self._block(self._settle_late())  # the answers to these must leave first
                return 0
        return len(batch.cids)

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
                tags = subscription.buffer.deliveries.ack_many(tags, key)
                settle = self._engine.subscriptions.ack_late
                unknown = await patiently(self._engine, lambda: settle(subscription, tags, key))
        except StoreUnavailable:
            return  # it comes again; nothing is lost
        for tag in tags:
            if tag in unknown:
                self._nack(tag, reject)


def _encode(tags: Sequence[int], prefix: bytes, bodies: list[bytes]) -> bytes | bytearray:
    """Deliveries as frames; if other subscribers are given the same, they are encoded once."""
    if not isinstance(bodies, PayloadPart):
        return encode_deliveries(tags, prefix, bodies)
    if isinstance(bodies.made, SharedDeliveries) and (frames := bodies.made.to(tags, prefix)) is not None:
        return frames
    bodies.made = made = SharedDeliveries(tags, prefix, bodies)
    return made.frames
