"""One Overhop connection on the server: messages in, the engine's work, messages out (docs/protocols/overhop.md).

Messages are handled strictly in order. A request that has to look into the store blocks the session: it stops reading,
keeps the messages behind, and goes on from there. ENQUEUE, DONE and the like do not block: their answers wait in
`Replies` for the commit. QUESTs are no answers and are sent at once.

The first ENQUEUE or SUBSCRIBE decides by its queue in which process of this `runwire` the connection is served
(wire/net/process_group.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from time import time
from typing import Any
from uuid import uuid4

from queues.backoff import Backoff, even
from queues.engine.api import EngineError
from queues.permissions.rules import Operation, Protocol
from wire.net.connection import Connection, contained
from wire.net.limits import Closure
from wire.net.process_group import State as HandedState
from wire.net.tasks import Tasks
from wire.overhop.codec import encoder, messages
from wire.overhop.codec.decoder import OverhopEnvelope
from wire.overhop.codec.fields import DomainError, ShapeError, forbidden
from wire.overhop.codec.names import PUSH_RID, Code, Type
from wire.overhop.codec.runs import DoneRun, JobRun, Received, Run, RunDecoder
from wire.overhop.codec.timestamps import format_timestamp
from wire.overhop.delivery import Deliveries
from wire.overhop.enqueue import Enqueuer
from wire.overhop.machine import Action, Conversation, Event, State
from wire.overhop.service import OverhopService, allows
from wire.session import WireSession

#: Messages and runs of one connection that are handled before the others have a turn.
TURN = 200
#: Waits for the commit of earlier requests.
CATCH_UP = Backoff(0.0005, 0.05, even)
#: The key in a HELLO's payload by which a client asks for an ERR before it is closed for its bytes.
EXPLAIN = "explain"
Payload = dict[str, Any]
Answer = Coroutine[Any, Any, Payload | None]


class OverhopSession(WireSession):
    """The server's side of one connection: anonymous at first, then a worker."""

    def __init__(self, connection: Connection, service: OverhopService) -> None:
        super().__init__(connection, service.engine, Protocol.OVERHOP)
        self._service = service
        self._unconfirmed = service.unconfirmed.of(connection.peer[0])
        self._enqueuer = Enqueuer(connection, service, self._replies, self._spawn, self.client)
        self._deliveries = Deliveries(connection, service, self._replies, self.client)
        self._wid = ""
        #: Until the first queue is known: where the connection may be handed over.
        self._process_group = service.process_group
        self._conversation = Conversation(service.options.limits, self._loop.time())
        self._decoder: RunDecoder = RunDecoder(service.options.max_envelope)
        self._spawned = Tasks()
        self._finishing = False
        #: The client wants to be told why its bytes are refused.
        self._explains = False
        #: The client has sent its end of file: it cannot finish any job.
        self._at_end = False
        self._rid = ""
        self._connected_at = time()
        self._requests = 0
        #: Requests that need not look into the store, once this is a worker.
        self._fast: dict[int, Callable[[str, Payload], None]] = {}
        #: Handlers of runs, once this is a worker; one returns False when its messages are to be handled one by one.
        self._runs: dict[type[Run], Callable[[Any], bool]] = {}
        service.connected(self)
        connection.leave_handshake_to_session()

    # Called by the connection.

    def resume(self, state: HandedState) -> None:
        """Go on as the worker that it is."""
        self._process_group = None
        for before in (Type.HELLO, Type.REGISTER):
            self._conversation.on_message(before, self._loop.time())
        self._connected_at, self._requests = state["since"], state["requests"]
        self._explains = state["explain"]
        self.client.continue_since(self._connected_at)
        self._begin(state["wid"])

    def data_received(self, data: bytes) -> None:
        received = self._decoder.feed(data)
        if self._finishing:
            return
        if self._blocked:
            self._behind.extend(received)
            self._behind_bytes += len(data)
            self.connection.hold(self._decoder.pending + self._behind_bytes)
        else:
            self._behind_bytes = len(data)
            self._run(received)

    def eof_received(self) -> bool:
        """Answer the requests before the end; nothing can be pushed to a client that is leaving."""
        self._deliveries.withdraw()
        self._draining = self._at_end = True
        self._close_when_done()
        return True

    def connection_lost(self) -> None:
        self._conversation.on(Event.DISCONNECT, self._loop.time())
        self._finishing = True
        self._service.disconnected(self, self._wid)
        self._deliveries.withdraw()
        if self.connection.listener.stopping:
            self._deliveries.hand_back()
        else:
            self._deliveries.lose()
        self._enqueuer.forget()
        self._spawned.cancel()
        self._leave()

    def drain(self) -> None:
        """Take no more jobs; those at work may be finished while the listener waits."""
        self._deliveries.withdraw()
        self._draining = True
        self._close_when_done()

    def overfull(self) -> None:
        text = "too much of what clients have sent is incomplete or waits: this connection is closed"
        self._replies.begin().append(encoder.err(PUSH_RID, Code.UNAVAILABLE, text))
        self._finishing = True
        self._replies.flush()

    def holds(self) -> tuple[int, int]:
        """The jobs that it works on, and the bytes that it keeps."""
        return len(self._deliveries.assignments), self.connection.held_bytes

    def consumes(self) -> dict[int, int]:
        """None: workers are listed with their subscriptions."""
        return {}

    @contained
    def heartbeat(self, now: float) -> None:
        """The clock's part in registration."""
        self._act(self._conversation.on_heartbeat(now), PUSH_RID, "")
        self._replies.flush()

    # Messages.

    def _run(self, received: list[Received]) -> None:
        """Handle messages until all are done, one blocks, or it is time to let others have a turn."""
        at, left = 0, TURN
        while at < len(received) and left and not self._blocked and not self._finishing:
            left -= 1
            message = received[at]
            if isinstance(message, OverhopEnvelope):
                self._requests += 1
                self._handle(*message)
                at += 1
            elif (handle := self._runs.get(type(message))) is not None and handle(message):
                self._requests += len(message)
                at += 1
            else:
                received[at : at + 1] = message.envelopes()
        if self._finishing:
            pass
        elif at < len(received):
            if not self._blocked:  # let others have a turn
                self._start_blocking()
                self._loop.call_soon(self._unblock)
            self._behind = received[at:]
        self._replies.flush()
        if self._engine.settles(self._replies.round):
            self._engine.hurry_settling()
        self._engine.check_saturation()
        self.connection.hold(self._decoder.pending + (self._behind_bytes if self._blocked else 0))
        if self._replies.batch == self._engine.open_batch:
            self._unconfirmed.add(self.connection, self._behind_bytes)
        if not self._blocked and self._decoder.error is not None and not self._finishing:
            self._refuse_bytes(self._decoder.error)
        if self._draining:
            self._close_when_done()

    def _refuse_bytes(self, why: str) -> None:
        """What came is not Overhop: close, without a word unless the client has asked for one in its HELLO."""
        self.connection.blame(Closure.PROTOCOL, why)
        if self._explains:
            self._end(self._decoder.rid or PUSH_RID, Code.PROTOCOL_VIOLATION, why)
        else:
            self._finish()

    def _handle(self, t: int, rid: str, p: Payload) -> None:
        try:
            if (handle := self._fast.get(t)) is not None:
                handle(rid, p)
            else:
                self._handle_other(t, rid, p)
        except DomainError as error:
            unknown = t == Type.GQUEUE  # a name that no queue can have: there is none
            self._replies.begin().append(encoder.ok(rid) if unknown else encoder.err(rid, error.code, error.msg))
        except ShapeError as error:
            self._act(self._conversation.on(Event.WRONG, self._loop.time()), rid, str(error))

    def _handle_other(self, t: int, rid: str, p: Payload) -> None:
        registered = self._conversation.state is State.REGISTERED
        parse = messages.PARSERS.get(t)
        asked = None
        if parse is not None and (registered or t in (Type.HELLO, Type.REGISTER)):
            asked = parse(p)
        action = self._conversation.on_message(t, self._loop.time())
        if action is Action.HI:
            self._explains = p.get(EXPLAIN) is True
        if action is Action.SERVE:
            if isinstance(asked, messages.Subscribe) and (owner := self._other_owner(asked.q)) is not None:
                self._ask(rid, self._move(owner, OverhopEnvelope(t, rid, p)))
            else:
                self._ask(rid, self._slow(t, asked))
        else:
            self._act(action, rid, f"a message of type {t} is not allowed here")

    def _act(self, action: Action, rid: str, text: str) -> None:
        """Carry out an action of the table."""
        if action is Action.HI:
            self._replies.begin().append(encoder.encode(Type.HI, rid, {}))
        elif action is Action.REGISTER:
            self._begin(str(uuid4()))
            self._replies.begin().append(encoder.ok(rid, {"wid": self._wid}))
        elif action is Action.CHALLENGE:
            seconds = self._service.options.limits.ident_register
            deadline = format_timestamp(datetime.now(UTC) + timedelta(seconds=seconds))
            ident = {"register_timeout_seconds": math.ceil(seconds), "reply_deadline": deadline}
            self._replies.begin().append(encoder.encode(Type.IDENT, PUSH_RID, ident))
        elif action is Action.VIOLATION:
            self.connection.blame(Closure.PROTOCOL, text)
            self._end(rid, Code.PROTOCOL_VIOLATION, text)
        else:
            self._end_late(action, rid)

    def _end_late(self, action: Action, rid: str) -> None:
        """Close for what did not come in time."""
        if action in (Action.REGISTER_TIMEOUT, Action.TIMEOUT, Action.CLOSE):
            missing = "HELLO" if action is Action.CLOSE else "REGISTER"
            self.connection.blame(Closure.HANDSHAKE_TIMEOUT, f"no {missing} in time")
        if action is Action.REGISTER_TIMEOUT:
            self._end(rid, Code.REGISTER_TIMEOUT, "REGISTER came after the deadline of IDENT")
        elif action is Action.TIMEOUT:
            self._end(PUSH_RID, Code.CONNECTION_TIMEOUT, "no REGISTER before the deadline of IDENT")
        elif action is Action.CLOSE:
            self.connection.close()

    def _begin(self, wid: str) -> None:
        """From now on this is a worker."""
        self._wid = wid
        self._service.registered(self, self._wid)
        grant = self._service.grant
        self.client.identify(None if grant is None else grant.id, self._wid)
        self.connection.handshake_done()
        if grant is not None:
            self.connection.name_key(grant.id)
        self.connection.allow_silence(True)  # a worker may wait for jobs
        self.connection.when_writable(self._deliveries.go_on)
        deliveries = self._deliveries
        self._fast = {
            Type.PING: self._ping, Type.ENQUEUE: self._enqueue, Type.GOODBYE: self._goodbye,
            Type.CREDIT: deliveries.credit, Type.UNSUBSCRIBE: deliveries.unsubscribe, Type.ACK: deliveries.ack,
            Type.DONE: deliveries.done, Type.FAIL: deliveries.fail, Type.BEAT: deliveries.beat,
        }  # fmt: skip
        self._runs = {JobRun: self._enqueuer.publish_run, DoneRun: deliveries.done_run}
        if self._process_group is not None:
            self._fast[Type.ENQUEUE] = self._first_enqueue
            del self._runs[JobRun]

    # In another process.

    def _first_enqueue(self, rid: str, p: Payload) -> None:
        """The first ENQUEUE, unless a SUBSCRIBE came before."""
        owner = self._other_owner(messages.enqueue(p).q)
        if owner is None:
            self._enqueue(rid, p)
        else:
            self._ask(rid, self._move(owner, OverhopEnvelope(Type.ENQUEUE, rid, p)))

    def _other_owner(self, queue: str) -> int | None:
        """The process that is to go on with this connection, whose first queue this is; None: this one."""
        if (group := self._process_group) is None:
            return None
        self._process_group = None
        self._fast[Type.ENQUEUE] = self._enqueue
        self._runs[JobRun] = self._enqueuer.publish_run
        return group.other_owner("queue", queue.encode())

    async def _move(self, owner: int, first: OverhopEnvelope) -> None:
        """Hand the connection over, if that process takes it; else the `first` message is handled here."""
        group = self._service.process_group
        assert group is not None
        state = {"wid": self._wid, "explain": self._explains, "since": self._connected_at, "requests": self._requests}

        def unhandled() -> list[bytes]:
            behind = (message for one in self._behind for message in _envelopes(one))
            return [encoder.encode(*message) for message in (first, *behind)]

        moved = False
        with contextlib.suppress(encoder.Unencodable):
            moved = await self._hand_over(group, owner, state, unhandled)
        if not moved:
            self._behind.insert(0, first)

    # Requests that do not block.

    def _ping(self, rid: str, p: Payload) -> None:
        """PING: the answer is a barrier."""
        messages.empty(p)
        pong = encoder.encode(Type.PONG, rid, {"server_time": format_timestamp(datetime.now(UTC))})
        self._replies.begin(barrier=True).append(pong)

    def _enqueue(self, rid: str, p: Payload) -> None:
        job = messages.enqueue(p)
        publisher = self._service.publisher(job[0])
        # A job that this client has just finished may hold the key: what comes before is done before.
        if publisher is None or (job.key is not None and self._engine.settles(self._replies.round)):
            self._ask(rid, self._enqueue_later(rid, job))
        else:
            self._enqueuer.publish(rid, job, publisher)

    async def _enqueue_later(self, rid: str, job: messages.Enqueue) -> None:
        while (publisher := self._service.publisher(job.q)) is None:
            await self._service.permissions()
        self._enqueuer.publish(rid, job, publisher)

    def _goodbye(self, rid: str, p: Payload) -> None:
        """GOODBYE: hand everything back, answer, close."""
        messages.goodbye(p)
        self._deliveries.withdraw()
        if self._deliveries.assignments:
            self._deliveries.hand_back()
        self._replies.begin().append(encoder.ok(rid))
        self._finish()

    # Requests that block.

    def _slow(self, t: int, asked: Any) -> Answer:
        queries = self._service.queries
        if t == Type.SUBSCRIBE:
            return self._subscribe(asked)
        if t == Type.LOG:
            return self._deliveries.log(asked)
        if t == Type.GQUEUE:
            return self._allowed(Operation.SEE, asked, lambda: queries.queue(asked))
        if t == Type.LQUEUES:
            return self._list_queues()
        if t == Type.STATUS:
            return self._service.status()
        if t == Type.QSTATS:
            return self._allowed(Operation.SEE, asked, lambda: queries.stats(asked))
        if t == Type.JOB:
            return self._allowed(Operation.READ, messages.split_job_id(asked)[0], lambda: queries.job(asked))
        if t == Type.LSJOB:
            return self._allowed(Operation.READ, asked.q, lambda: self._list_jobs(asked))
        if t == Type.RMJOB:
            return self._allowed(Operation.MANAGE, messages.split_job_id(asked)[0], lambda: queries.remove_job(asked))
        if t == Type.ADDQUEUE:
            return self._allowed(Operation.CREATE, asked.name, lambda: queries.add_queue(asked))
        if t == Type.RMQUEUE:
            return self._allowed(Operation.MANAGE, asked, lambda: queries.remove_queue(asked))
        return self._allowed(Operation.MANAGE, asked, lambda: queries.set_paused(asked, t == Type.PAUSE))

    async def _allowed(self, operation: Operation, queue: str, answer: Callable[[], Answer]) -> Payload | None:
        if not await self._service.may(operation, queue):
            raise forbidden(queue, f"queue {queue} is not for you to {operation}")
        return await answer()

    async def _list_queues(self) -> Payload:
        """LQUEUES: the queues that may be seen here."""
        grant = await self._service.permissions()
        return await self._service.queries.queues(lambda name: allows(grant, Operation.SEE, name))

    async def _list_jobs(self, wanted: messages.ListJobs) -> None:
        """LSJOB: a page that no envelope can take is refused."""
        rid = self._rid
        frame = encoder.ok(rid, await self._service.queries.list_jobs(wanted))
        most = self._service.options.max_envelope
        if len(frame) > most:
            raise DomainError(Code.INVALID_PAGE_SIZE, f"these jobs need {len(frame)} bytes, over {most}: ask for fewer")
        self._replies.begin().append(frame)

    async def _subscribe(self, wanted: messages.Subscribe) -> None:
        """SUBSCRIBE: no job may be pushed before the answer, which waits for nothing here."""
        rid = self._rid
        consumer = await self._deliveries.subscribe(wanted)
        self._replies.begin().append(encoder.ok(rid, {"sid": consumer.sid}))
        self._replies.flush()
        if wanted.credits:
            consumer.grant(wanted.credits)

    def _ask(self, rid: str, answer: Answer) -> None:
        """Handle nothing more until this is answered."""
        self._rid = rid
        self._block(self._serve(rid, answer))

    async def _serve(self, rid: str, answer: Answer) -> None:
        """Answer, unless the request has done that itself."""
        try:
            await self._caught_up()
            payload = await answer
            frame = None if payload is None else encoder.ok(rid, payload)
        except asyncio.CancelledError:
            answer.close()
            raise
        except DomainError as error:
            frame = encoder.err(rid, error.code, error.msg)
        except (EngineError, encoder.Unencodable) as error:
            frame = encoder.err(rid, Code.UNAVAILABLE, str(error))
        if frame is not None and not self.connection.is_closing:
            self._replies.begin().append(frame)

    async def _caught_up(self) -> None:
        """Wait for the commit of earlier requests: the one that blocks must see it, and is answered behind it."""
        for delay in CATCH_UP.delays():
            if not self._replies.waiting:
                return
            await asyncio.sleep(delay)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        """Run in the background, no longer than the connection lives."""
        self._spawned.spawn(self._in_background(job))

    async def _in_background(self, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except Exception:
            self.connection.failed("a request")

    # The end.

    def _end(self, rid: str, code: Code, text: str) -> None:
        self._replies.begin().append(encoder.err(rid, code, text))
        self._finish()

    def _finish(self) -> None:
        """Handle nothing more; close when every answer is out."""
        self._finishing = self._draining = True
        self._replies.flush()
        self._close_when_done()

    def _at_work(self) -> bool:
        return not self._finishing and (self._blocked or bool(self._deliveries.assignments and not self._at_end))

    @property
    def version(self) -> tuple[int, int]:
        """Another one whenever the snapshot may have become another."""
        return self._requests, self._deliveries.changes

    def snapshot(self) -> dict[str, Any]:
        """Describe this worker, for the admin."""
        return {
            "wid": self._wid,
            "address": f"{self.connection.peer[0]}:{self.connection.peer[1]}",
            "connected_at": self._connected_at,
            "requests": self._requests,
            **self._deliveries.snapshot(),
        }


def _envelopes(received: Received) -> Iterable[OverhopEnvelope]:
    """The messages of a run, or the one that was received by itself."""
    return (received,) if isinstance(received, OverhopEnvelope) else received.envelopes()
