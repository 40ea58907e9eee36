"""The broker's side of a peerbus connection (docs/protocols/peerbus.md): its frames, deliveries and closes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from peers import gateway
from peers.codec import frames
from peers.codec.envelope import BROADCAST, Envelope
from peers.codec.frames import Ack, Frame, Ignored, Rejection
from peers.machine import SERVED, Action, Conversation, Event, State
from peers.server.transport import INTERNAL_ERROR, Transport
from peers.service import PeerbusService
from queues.engine.api import (
    Acks,
    Ask,
    Broker,
    ClientConnection,
    Destination,
    EngineError,
    Forward,
    Grant,
    Letters,
    Mailbox,
    MailboxClaimed,
    MailboxService,
    PeerMessage,
    TooManyNames,
)
from queues.permissions.rules import Operation, Protocol
from wire.net.address import HostPort

logger = logging.getLogger(__name__)

pause = asyncio.sleep

NOT_ALLOWED = Rejection(1008, "name not allowed for this token")
KEY_CHANGED = Rejection(1008, "api key changed")
TOO_MANY = Rejection(1013, "too many connections")
TOO_MANY_OF_KEY = Rejection(1013, "too many connections with this token")
EVICTED = Rejection(1008, "disconnected by an operator")
STORE_AWAY = Rejection(1011, "message store unavailable")

TOO_MANY_NAMES = Rejection(1008, "too many names for this token")
#: The close frame for a register that the mailbox service refuses.
REFUSALS: dict[type[EngineError], Rejection] = {MailboxClaimed: frames.NAME_CLAIMED, TooManyNames: TOO_MANY_NAMES}

FORBIDDEN = Ignored("recipient not allowed for this token")
BINARY = Ignored("binary message")
REPEATED = Ignored("repeated register")

#: Frames and bytes kept of a client that does not wait for the answer to its register; then it is not read from.
MAX_HELD = 1000
MAX_HELD_BYTES = 4 << 20


class PeerSession:
    """One connection. It is a `SessionReceiver` of its transport, and holds its peer's mailbox."""

    def __init__(self, transport: Transport, scope: Mapping[str, Any], service: PeerbusService) -> None:
        self._transport = transport
        self._service = service
        host, port = scope.get("client") or ("", 0)
        self._address, self._port = str(host), int(port or 0)
        self._conversation = Conversation()
        self._held: list[Frame] = []
        self._held_bytes = 0
        self._engine: Broker | None = None
        self._mailbox_service: MailboxService
        self._mailbox: Mailbox | None = None
        self._grant: Grant | None = None
        self._client: ClientConnection | None = None
        self._binding: asyncio.Task[None] | None = None
        self._ended = False
        self._sent = 0
        #: Answers that wait until the client reads; meanwhile it is not read from.
        self._owed = 0
        self._names: list[str] = []
        self._saturated = False
        self._crowded = False
        self._slow_timer: asyncio.TimerHandle | None = None
        self._handshake_timer: asyncio.TimerHandle | None = None
        if not service.admit(self):
            self._close(TOO_MANY)
            return
        self._options = service.options
        self._handshake_timer = asyncio.get_running_loop().call_later(
            self._options.handshake_timeout, self._no_frame
        )

    # Called by the transport

    def texts_received(self, texts: Sequence[bytes]) -> None:
        """Text messages have arrived."""
        if self._conversation.state is State.ESTABLISHED:
            if self._mailbox is not None and (keys := frames.plain_acks(texts)):
                self._mailbox_service.take_in(Acks(self._mailbox, keys))
                return
            for typed, some in groupby(texts, frames.is_typed):
                run = [*some]
                if typed or not self._post(run):
                    self._serve(map(frames.parse_frame, run))
            return
        for text in texts:
            if self._conversation.state is State.AWAITING_REGISTER:
                self._first(text)
                continue
            if self._ended:
                return
            frame = frames.parse_frame(text)
            action = self._conversation.on_frame(frame)
            if action is Action.HOLD:
                self._held.append(frame)
                self._held_bytes += len(text)
                self._read_or_wait()
            elif action is Action.COUNT:
                self._count(frame)

    def binary_received(self) -> None:
        """A binary message has arrived: it has no meaning, but as the first it is an error."""
        if self._conversation.state is State.AWAITING_REGISTER:
            self._first(None)
        else:
            self._count(BINARY)

    def connection_lost(self) -> None:
        """The connection has ended: its peer is away, unless it has come back by another one."""
        self._end()

    def failed(self, event: str) -> None:
        """Something of this connection has raised the exception that is being handled, which costs it alone."""
        mailbox = self._mailbox
        name, number = (None, 0) if mailbox is None else (mailbox.name, mailbox.connection)
        if self._service.session_failed(event):
            logger.exception(
                "connection %d of peer %r failed in %s and is closed", number, name, event,
                extra={"connection": number, "peer": name},
            )  # fmt: skip

    def break_off(self) -> None:
        """Something that the engine does for this connection has failed, and is logged."""
        self._service.failures += 1
        self._close(INTERNAL_ERROR)

    def _serve(self, received: Iterable[Frame]) -> None:
        """Do what frames ask for, in their order: envelopes and acknowledgements as runs, up to what is neither."""
        mailbox, engine, client = self._mailbox, self._engine, self._client
        if mailbox is None or engine is None or client is None:
            return
        envelopes, acks = list[tuple[str, str | None, bytes]](), list[str]()
        ways: dict[str, Destination | bool] = {}
        sent = 0
        try:
            for frame in received:
                action = SERVED[type(frame)]
                if action is Action.ROUTE:
                    assert isinstance(frame, Envelope)
                    sent += 1
                    if (way := ways.get(to := frame.to)) is None:
                        way = ways[to] = self._way(to)
                    if way is True:
                        envelopes.append((frame.id, None if to == BROADCAST else to, frame.text))
                    elif way is False:
                        self._count(FORBIDDEN)
                    else:
                        self._take_in(mailbox, envelopes, acks, Forward(mailbox, frame.id, way, frame.text))
                elif action is Action.ACKNOWLEDGE:
                    assert isinstance(frame, Ack)
                    acks.append(frame.key)
                elif action is Action.LIST:
                    self._take_in(mailbox, envelopes, acks, Ask(mailbox))
                elif action is Action.COUNT:
                    self._count(frame)
        finally:  # a frame that raises costs none before it
            self._take_in(mailbox, envelopes, acks)
        if sent:
            client.published(sent)
            engine.check_saturation()

    def _post(self, texts: list[bytes]) -> bool:
        """Take in frames as one run if all of them are envelopes to peers in the usual form, and allowed."""
        mailbox, engine, client = self._mailbox, self._engine, self._client
        ids, recipients = frames.plain_envelopes(texts)
        if mailbox is None or engine is None or client is None or not ids:
            return False
        if not all(self._way(to) is True for to in set(recipients)):
            return False
        self._mailbox_service.take_in(Letters(mailbox, ids, [*recipients], texts))
        client.published(len(ids))
        engine.check_saturation()
        return True

    def _take_in(
        self, mailbox: Mailbox, envelopes: list[tuple[str, str | None, bytes]], acks: list[str], *items: Forward | Ask
    ) -> None:
        """Give the mailbox service the runs, which are emptied, and items behind them."""
        if acks:
            self._mailbox_service.take_in(Acks(mailbox, acks[:]))
            acks.clear()
        if envelopes:
            keys, recipients, bodies = zip(*envelopes, strict=True)
            self._mailbox_service.take_in(Letters(mailbox, [*keys], [*recipients], [*bodies]))
            envelopes.clear()
        for item in items:
            self._mailbox_service.take_in(item)

    def _way(self, to: str) -> Destination | bool:
        """Where an envelope to this recipient goes: to peers (True), to a queue or topic, or nowhere, by the rights of
        the connection's own name: the envelope's `from` is not looked at."""
        grant = self._grant
        assert grant is not None
        kind, colon, name = to.partition(":")
        if colon and kind in ("queue", "topic"):
            # Mailboxes are out of reach: at _peer/bob the gateway would sign for any sender.
            allowed = name and grant.may(Protocol.PEERBUS, Operation.PUBLISH, kind, name.encode())
            return Destination(kind, name.encode()) if allowed else False
        return grant.may(Protocol.PEERBUS, Operation.PUBLISH, "peer", to.encode())

    def _count(self, frame: Frame) -> None:
        """Count a frame that means nothing here."""
        ignored = frame if isinstance(frame, Ignored) else REPEATED
        self._service.ignored[ignored.reason] += 1

    # The handshake.

    def _first(self, text: bytes | None) -> None:
        frame = frames.handshake(text)
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        if isinstance(frame, Rejection):
            self._conversation.on(Event.UNFIT)
            self._close(frame)
        else:
            self._conversation.on(Event.REGISTER)
            self._binding = asyncio.create_task(self._bind(frame))

    def _no_frame(self) -> None:
        if self._conversation.on(Event.NO_FRAME) is Action.REJECT:
            self._close(frames.NO_FRAME)

    async def _bind(self, register: frames.Register) -> None:
        """Ask whether the token may have the name, then for the mailbox."""
        try:
            await self._ask(register)
        except Exception:
            self.failed("the register")
            self._refuse(frames.PERSISTENCE_FAILED)

    async def _ask(self, register: frames.Register) -> None:
        try:
            engine = await self._service.engine()
            grant = await engine.authenticate(register.token, Protocol.PEERBUS, self._address)
        except EngineError:
            self._refuse(frames.PERSISTENCE_FAILED)
            return
        if grant is None:
            await pause(self._service.throttle.failed(self._address))
            self._refuse(frames.INVALID_TOKEN)
        elif not grant.may(Protocol.PEERBUS, Operation.CONSUME, "peer", register.name.encode()):
            self._refuse(NOT_ALLOWED)
        elif self._conversation.state is State.REGISTERING:
            if not self._service.admit_key(grant.id, self):
                self._refuse(TOO_MANY_OF_KEY)
                return
            self._engine, self._mailbox_service, self._grant = engine, engine.mailboxes, grant
            self._client = engine.clients.add(Protocol.PEERBUS, str(HostPort(self._address, self._port)), self)
            self._client.identify(grant.id, register.name)
            self._mailbox = engine.mailboxes.take(register.name, grant.id, self)

    def _refuse(self, rejection: Rejection) -> None:
        if self._conversation.on(Event.REFUSED) is Action.REJECT:
            self._close(rejection)

    # Called by the mailbox service

    @property
    def room_bytes(self) -> int:
        """Bytes of envelopes that may be sent now."""
        return self._options.window_bytes - self._transport.unsent

    def taken(self, names: list[str]) -> None:
        """The mailbox is this connection's: answer the register, then handle the frames that were held."""
        if self._conversation.on(Event.REGISTERED) is not Action.WELCOME:
            return
        self._transport.send([frames.peers_frame(names)])
        held, self._held, self._held_bytes = self._held, [], 0
        self._serve(held)
        self._read_or_wait()

    def refused(self, error: EngineError) -> None:
        """The mailbox is not this connection's, or the store is away for too long."""
        if self._conversation.state is State.REGISTERING:
            self._refuse(REFUSALS.get(type(error), frames.PERSISTENCE_FAILED))
        else:
            self._close(STORE_AWAY)

    def displaced(self) -> None:
        """Another connection has taken the name."""
        self._close(frames.TAKEN_OVER)

    def evicted(self) -> None:
        """An operator has ended the connection."""
        self._close(EVICTED)

    disconnect = evicted

    def holds(self) -> tuple[int, int]:
        """Letters that are not acknowledged, and the bytes that the connection keeps."""
        unacked = 0 if self._mailbox is None else len(self._mailbox.unacked)
        return unacked, self._held_bytes + self._transport.unsent

    def consumes(self) -> dict[int, int]:
        """None: a mailbox tells of its peer."""
        return {}

    def crowd(self, crowded: bool) -> None:
        """Too many items of this connection, or of its API key, wait for the database, or no longer."""
        self._crowded = crowded
        self._read_or_wait()

    def deliver(self, keys: list[str], payloads: list[bytes]) -> None:
        """Send envelopes."""
        if self._ended:
            return
        if self._client is not None:
            self._client.delivered(len(keys))
        self._send(frames.deliver_frames(keys, payloads))

    def wrap(self, message: PeerMessage) -> bytes:
        """Make an envelope of a message that a route has brought."""
        assert self._mailbox is not None
        return gateway.wrap(message, self._mailbox.name, self._options.secret)

    def answer(self, names: list[str]) -> None:
        """Answer a request for the peers, when the client reads."""
        self._owed += 1
        self._names = names
        self._answer_requests()

    def _answer_requests(self) -> None:
        frame = frames.peers_frame(self._names) if self._owed and self.room_bytes > 0 else b""
        while self._owed and self.room_bytes > 0 and not self._ended:
            self._owed -= 1
            self._send([frame])
        self._read_or_wait()

    def _send(self, texts: list[bytes]) -> None:
        self._sent += sum(map(len, texts))
        self._transport.send(texts)
        if self._slow_timer is None and self._transport.unsent:
            self._watch()

    def _read_or_wait(self) -> None:
        """Read from the client, unless it is owed answers or its welcome, or too much waits for the database."""
        held = len(self._held) > MAX_HELD or self._held_bytes > MAX_HELD_BYTES
        if self._ended:
            return
        if self._owed or held or self._saturated or self._crowded:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # A client that does not read.

    def drained(self) -> None:
        """Everything that was sent has left."""
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        self._answer_requests()
        if self._mailbox is not None and self._engine is not None:
            self._mailbox_service.drained(self._mailbox)

    def _watch(self) -> None:
        """Look again in a while: if nothing has left by then, the client does not read."""
        gone = self._sent - self._transport.unsent
        self._slow_timer = asyncio.get_running_loop().call_later(self._options.slow_timeout, self._look, gone)

    def _look(self, gone: int) -> None:
        self._slow_timer = None
        unsent = self._transport.unsent
        if unsent and self._sent - unsent <= gone:
            self._close(frames.SLOW_CONSUMER)
        elif unsent:
            self._watch()

    # Called by the service

    def saturate(self, saturated: bool) -> None:
        """Too much waits for the database, or no longer."""
        self._saturated = saturated
        self._read_or_wait()

    def revoke(self) -> None:
        """The API key was changed or revoked: the connection has to show it again."""
        self._close(KEY_CHANGED)

    # The end.

    def _close(self, rejection: Rejection) -> None:
        if not self._ended:
            self._service.closed[rejection.reason] += 1
            self._transport.close(*rejection)
            self._end()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._conversation.on(Event.DISCONNECT)
        self._service.forget(self, self._grant.id if self._grant is not None else None)
        self._held.clear()
        for timer in (self._handshake_timer, self._slow_timer):
            if timer is not None:
                timer.cancel()
        if self._client is not None and self._engine is not None:
            self._engine.clients.remove(self._client)
        if self._mailbox is not None:
            self._mailbox_service.leave(self._mailbox)
