"""An Overhop client without manners: sends any bytes, and holds the server's against the specification."""

from __future__ import annotations

import itertools
from typing import Any

import msgpack  # type: ignore[import-untyped]

from tests.waiting import wait_until
from tests.wire.broker import Address, Database, Raw
from wire.overhop.codec import encoder
from wire.overhop.codec.decoder import OverhopEnvelope
from wire.overhop.codec.names import Code, Type

Payload = dict[str, Any]

PUSHED = frozenset((Type.IDENT, Type.QUEST))


def framed(body: bytes) -> bytes:
    """A body behind its length."""
    return len(body).to_bytes(4, "big") + body


def as_written(value: Any) -> Any:
    """A value whose maps are in the order in which a server writes them: by key, at every depth."""
    if isinstance(value, dict):
        return {key: as_written(value[key]) for key in sorted(value)}
    return [as_written(each) for each in value] if isinstance(value, list) else value


class Peer(Raw):
    """A connection, made a worker unless `register` is False. What is pushed meanwhile waits in `pushed`."""

    def __init__(self, address: Address, register: bool = True) -> None:
        super().__init__(address)
        self.wid = ""
        self.pushed: list[OverhopEnvelope] = []
        self._rids = (f"r{number}" for number in itertools.count(1))
        if register:
            self.hello()
            self.wid = self.ask(Type.REGISTER)["wid"]

    # Frames.

    def read(self) -> OverhopEnvelope:
        """The next frame. Its maps are sorted and its integers as short as they go."""
        body = self.take(int.from_bytes(self.take(4), "big"))
        envelope = msgpack.unpackb(body)
        assert msgpack.packb(as_written(envelope)) == body, body
        assert set(envelope) == {"v", "t", "rid", "p"}, envelope
        assert (envelope["v"], envelope["t"] > 100) == (2, True), envelope
        message = OverhopEnvelope(envelope["t"], envelope["rid"], envelope["p"])
        assert (message.rid == "0") == (message.t in PUSHED or _is_farewell(message)), message
        return message

    def request(self, t: int, p: Payload | None = None, **more: Any) -> str:
        """Send a request, not waiting for its answer; its request id."""
        rid = next(self._rids)
        self.send(encoder.encode(t, rid, (p or {}) | more))
        return rid

    def reply(self, rid: str) -> OverhopEnvelope:
        """The next frame that is no QUEST: it must be the reply to this request."""
        while (message := self.read()).t == Type.QUEST:
            self.pushed.append(message)
        assert message.rid == rid, message
        return message

    # Requests.

    def hello(self) -> None:
        """HELLO, HI."""
        assert self.reply(self.request(Type.HELLO)) == (Type.HI, "r1", {})

    def ask(self, t: int, p: Payload | None = None, **more: Any) -> Payload:
        """A request that is answered OK: the answer's payload."""
        message = self.reply(self.request(t, p, **more))
        assert message.t == (Type.PONG if t == Type.PING else Type.OK), message
        return message.p

    def refused(self, t: int, p: Payload | None = None, **more: Any) -> Code:
        """A request that is answered ERR, after which the connection goes on: the code."""
        code = error_code(self.reply(self.request(t, p, **more)))
        self.ask(Type.PING)
        return code

    def violation(self, t: int, p: Payload | None = None, **more: Any) -> str:
        """A request that is answered ERR PROTOCOL_VIOLATION, after which the connection ends: the text."""
        message = self.reply(self.request(t, p, **more))
        assert error_code(message) is Code.PROTOCOL_VIOLATION
        self.ended()
        return str(message.p["msg"])

    def ended(self) -> None:
        """The server has closed the connection and said nothing more."""
        assert self.rest() == b""

    def enqueue(self, q: str, payload: Any = None, **options: Any) -> str:
        """ENQUEUE; the jid."""
        given = {} if payload is None else {"job_payload": payload}
        answer = self.ask(Type.ENQUEUE, {"q": q, **given, **options})
        assert set(answer) == {"jid"}
        return str(answer["jid"])

    def enqueue_many(self, q: str, payloads: list[Any], **options: Any) -> list[str]:
        """ENQUEUE all of them at once; the jids."""
        rids = [str(next(self._rids)) for _ in payloads]
        self.send(
            *(
                encoder.encode(Type.ENQUEUE, rid, {"q": q, "job_payload": payload} | options)
                for rid, payload in zip(rids, payloads, strict=True)
            )
        )
        return [str(self.reply(rid).p["jid"]) for rid in rids]

    def subscribe(self, q: str, credits: int = 0) -> str:
        """SUBSCRIBE; the sid."""
        return str(self.ask(Type.SUBSCRIBE, q=q, credits=credits)["sid"])

    def record(self, jid: str) -> Payload:
        """JOB."""
        return self.ask(Type.JOB, jid=jid)

    def stats(self, q: str) -> dict[str, int]:
        """QSTATS: what is not 0."""
        return {status: count for status, count in self.ask(Type.QSTATS, q=q)["stats"].items() if count}

    def wait_for_stats(self, q: str, **counts: int) -> None:
        """Wait until QSTATS says this. What a process has prefetched without a consumer goes back after a moment."""
        wait_until(lambda: self.stats(q) == counts, lambda: f"{counts} in {q} (now {self.stats(q)})")

    # Pushes.

    def quest(self) -> Payload:
        """The payload of the next QUEST."""
        message = self.pushed.pop(0) if self.pushed else self.read()
        assert message.t == Type.QUEST, message
        return message.p

    def quests(self, count: int) -> list[Payload]:
        """So many QUESTs."""
        return [self.quest() for _ in range(count)]

    def no_quest(self) -> bool:
        """Whether nothing has been pushed, and nothing is in a moment."""
        self.ask(Type.PING)
        return not self.pushed and self.is_silent()

    def do(self, q: str, count: int) -> list[Any]:
        """Subscribe, do so many jobs, unsubscribe; their payloads."""
        sid = self.subscribe(q, count)
        quests = self.quests(count)
        for quest in quests:
            self.ask(Type.DONE, jid=quest["jid"])
        self.ask(Type.UNSUBSCRIBE, sid=sid)
        return [quest["job_payload"] for quest in quests]

    def hang_up(self) -> None:
        """Close, and wait until the server has noticed."""
        self.end_of_input()
        self.rest()
        self.close()


def _is_farewell(message: OverhopEnvelope) -> bool:
    """Whether this is an ERR that no request has asked for, in which case the end follows."""
    unasked = (Code.CONNECTION_TIMEOUT, Code.UNAVAILABLE)
    return message.t == Type.ERR and message.rid == "0" and message.p.get("code") in unasked


def error_code(message: OverhopEnvelope) -> Code:
    """The code of an ERR, which always has a text too."""
    assert message.t == Type.ERR, message
    assert set(message.p) == {"code", "msg"}, message
    assert message.p["msg"], message
    return Code(message.p["code"])


_names = (f"queue-{number}" for number in itertools.count(1))


def change_policy(peer: Peer, store: Database, queue: str, **policy: Any) -> None:
    """Change a queue's policy as an operator does; this peer's broker obeys it from now on."""
    store.change_queue(store.queue(queue), **policy)
    peer.ask(Type.PAUSE, q=queue)  # which has the policy read anew
    peer.ask(Type.RESUME, q=queue)


def make_queue(peer: Peer, store: Database, config: Payload | None = None, **policy: Any) -> str:
    """ADDQUEUE; `policy` are columns that an operator has changed before the queue is used. Its name."""
    name = next(_names)
    peer.ask(Type.ADDQUEUE, {"name": name} | ({"config": config} if config else {}))
    if policy:
        store.change_queue(store.queue(name), **policy)
    return name
