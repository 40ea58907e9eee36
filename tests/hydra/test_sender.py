"""Lines from a queue to IRC, each once or never, under all faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from hydra.irc.fates import SENT, Fate, FateKind
from hydra.protocol.lines import targets
from hydra.sender import Sender
from hydra.storage.line_records import claim, release, release_dead
from queues.engine.api import EngineError
from queues.engine.message import Detail
from tests.waiting import PATIENCE, until

HELLO = b"PRIVMSG #a :hello"


class Buffer:
    """A queue's part in memory and its deliveries, as a sender uses them."""

    def __init__(self) -> None:
        self.deliveries = self
        self.messages: list[tuple[int, bytes, Detail | None]] = []
        self.unacked: dict[int, tuple[int, int, float, Detail | None]] = {}
        self.closed = False
        self.waiter: Sender | None = None
        self.log: list[tuple[str, int]] = []
        self._tags = 0

    def put(self, *messages: tuple[int, bytes], detail: Detail | None = None) -> None:
        self.messages += [(id, body, detail) for id, body in messages]
        self._dispatch()

    def wait(self, waiter: Sender) -> None:
        self.waiter = waiter
        self._dispatch()

    def cancel(self, waiter: Sender) -> None:
        if self.waiter is waiter:
            self.waiter = None

    def leave(self, consumer: Sender, *, finish: bool) -> None:
        """Another sender may have the queue, if only one is to."""

    def _dispatch(self) -> None:
        if self.messages and self.waiter is not None:
            id, body, detail = self.messages.pop(0)
            self._tags += 1
            self.unacked[self._tags] = (id, 0, 0.0, detail)
            waiter, self.waiter = self.waiter, None
            waiter.deliver((self._tags, body, 0, detail))

    def ack(self, tag: int) -> None:
        self.log.append(("ack", self.unacked.pop(tag)[0]))

    def hand_back(self, tag: int) -> None:
        id, _, _, detail = self.unacked.pop(tag)
        self.log.append(("hand back", id))
        self.messages.insert(0, (id, HELLO, detail))

    def bury(self, tag: int, reason: str) -> None:
        self.log.append((f"bury: {reason[:15]}", self.unacked.pop(tag)[0]))


class Surroundings:
    """An engine, a gate, claims, and what becomes of the lines."""

    def __init__(self) -> None:
        self.buffer = Buffer()
        self.open = True
        self.opened = asyncio.Event()
        self.opened.set()
        self.claimed: set[int] = set()
        self.submitted: list[tuple[str, str]] = []
        self.happened: list[tuple[str, str]] = []
        self.troubles: list[Exception] = []
        """Errors of the next claims."""
        self.looks = 0
        self.fates: list[Fate] = []
        """What becomes of the next lines that this node sends."""
        self.awaited: set[str] = set()
        """Channels that the leader is not in."""
        self.before_claim: Callable[[], None] = lambda: None
        self.slow: asyncio.Event | None = None
        """Holds back the answer to a committed claim until it is set."""
        fake = cast(Any, self)
        self.sender = Sender(
            fake, "hydra.send", fake, fake, self._submit, lambda *what: self.happened.append(what),
            lambda line: next((f"not in {name}: banned" for name in targets(line) if name in self.awaited), None),
        )  # fmt: skip

    async def queue(self, name: str) -> Any:
        if self.troubles and isinstance(self.troubles[0], EngineError):
            raise self.troubles.pop(0)
        if self.buffer.closed:
            self.buffer, old = Buffer(), self.buffer
            self.buffer.messages = old.messages
        return self.buffer

    def is_open(self) -> bool:
        return self.open

    async def wait(self) -> None:
        await self.opened.wait()

    def shut(self) -> None:
        self.open = False
        self.opened.clear()
        self.sender.gate_changed()

    async def run(self, function: Any, message: int) -> Any:
        """What the thread of the database does with a message."""
        return await {claim: self._claim, release: self._release, release_dead: self._release_dead}[function](message)

    async def _claim(self, message: int) -> bool:
        self.before_claim()
        if self.troubles:
            raise self.troubles.pop(0)
        new = message not in self.claimed
        self.claimed.add(message)
        if self.slow is not None:
            await self.slow.wait()
        return new

    async def _release(self, message: int) -> None:
        self.claimed.discard(message)

    async def _release_dead(self, message: int) -> bool:
        """The dead letter is stored at the second look."""
        self.looks += 1
        if self.looks % 2:
            return False
        self.claimed.discard(message)
        return True

    def _submit(self, message: str, line: str) -> asyncio.Future[Fate] | None:
        assert int(message.partition("-")[0].partition(".")[0]) in self.claimed
        assert self.buffer.unacked, "it is acknowledged before it is said"
        self.submitted.append((message, line))
        if not self.fates:
            return None  # another node is to send it
        fate: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()
        fate.set_result(self.fates.pop(0))
        return fate

    async def until(self, condition: Callable[[], Any]) -> None:
        await until(condition)


@pytest.fixture
async def around(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Surroundings]:
    monkeypatch.setattr("hydra.sender.RETRY", 0.001)
    monkeypatch.setattr("hydra.sender.LOOK", 0.001)
    around = Surroundings()
    yield around
    await around.sender.stop()


async def test_lines_go_to_irc_in_order_and_are_acknowledged_afterwards(around: Surroundings) -> None:
    around.buffer.put(*((number, b"PRIVMSG #a :%d\r\n" % number) for number in range(1, 6)))
    await around.until(lambda: len(around.buffer.log) == 5)
    assert around.submitted == [(str(number), f"PRIVMSG #a :{number}") for number in range(1, 6)]
    assert around.buffer.log == [("ack", number) for number in range(1, 6)]


async def test_a_line_whose_node_died_between_claim_and_acknowledgement_is_not_said_again(around: Surroundings) -> None:
    around.claimed.add(7)
    around.buffer.put((7, HELLO), (8, HELLO))
    await around.until(lambda: len(around.buffer.log) == 2)
    assert [message for message, _ in around.submitted] == ["8"]
    assert around.buffer.log == [("bury: it was taken be", 7), ("ack", 8)]
    assert around.claimed == {8}, "what an operator puts back is sent"
    assert [kind for kind, _ in around.happened] == ["line lost"]
    assert "7" in around.happened[0][1]


async def test_a_line_that_fails_for_an_unforeseen_reason_is_a_dead_letter_and_the_next_one_goes_on(
    around: Surroundings,
) -> None:
    around.troubles.append(ZeroDivisionError("unforeseen"))
    around.buffer.put((7, HELLO), (8, HELLO))
    await around.until(lambda: len(around.buffer.log) == 2)
    assert around.buffer.log[1] == ("ack", 8)
    assert around.buffer.log[0] == ("bury: a fault in sayi", 7)
    assert [message for message, _ in around.submitted] == ["8"]
    assert [kind for kind, _ in around.happened] == ["fault"]


async def test_a_line_that_has_come_back_is_known_by_its_first_id(around: Surroundings) -> None:
    around.claimed.add(7)
    around.buffer.put((99, HELLO), detail=Detail(origin=7))
    await around.until(lambda: around.buffer.log)
    assert around.submitted == []
    assert around.buffer.log == [("bury: it was taken be", 99)]


async def test_a_line_waits_while_the_database_is_away(around: Surroundings) -> None:
    around.troubles = [ConnectionError("away"), ConnectionError("still away")]
    around.buffer.put((7, HELLO))
    await around.until(lambda: around.submitted)
    assert around.buffer.log == [("hand back", 7), ("hand back", 7), ("ack", 7)]
    assert around.submitted == [("7", HELLO.decode())]


async def test_a_queue_that_cannot_be_had_is_asked_for_again(around: Surroundings) -> None:
    await around.sender.stop()
    again = Surroundings()
    again.troubles = [EngineError("no such queue"), EngineError("the database is away")]
    again.buffer.put((7, HELLO))
    await again.until(lambda: again.submitted)
    await again.sender.stop()


async def test_a_buffer_that_was_closed_is_replaced(around: Surroundings) -> None:
    around.buffer.put((7, HELLO))
    await around.until(lambda: around.submitted)
    around.buffer.closed = True
    around.sender.refuse()
    await around.until(lambda: not around.buffer.closed)
    around.buffer.put((8, HELLO))
    await around.until(lambda: len(around.submitted) == 2)


async def test_nothing_is_taken_while_the_gate_is_closed(around: Surroundings) -> None:
    await around.until(lambda: around.buffer.waiter)
    around.shut()
    await around.until(lambda: around.buffer.waiter is None)
    around.buffer.put((7, HELLO))
    for _ in range(20):
        await asyncio.sleep(0)
    assert around.buffer.unacked == {}
    around.open = True
    around.opened.set()
    await around.until(lambda: around.submitted)


async def test_a_line_is_given_back_when_the_gate_closes_before_it_is_noted(around: Surroundings) -> None:
    await around.until(lambda: around.buffer.waiter)
    around.open = False  # at the very moment, so that no waiter was told
    around.opened.clear()
    around.buffer.put((7, HELLO))
    await around.until(lambda: around.buffer.log)
    assert around.buffer.log == [("hand back", 7)]
    assert around.claimed == set()


async def test_a_line_is_given_back_and_forgotten_when_the_gate_closes_while_it_is_noted(around: Surroundings) -> None:
    around.before_claim = around.shut
    around.buffer.put((7, HELLO))
    await around.until(lambda: around.buffer.log)
    assert around.buffer.log == [("hand back", 7)]
    assert around.submitted == []
    assert around.claimed == set()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"QUIT :x",
        b"PRIVMSG #a :\xff",
        b"PRIVMSG #a :x\r\nQUIT",
        b"PRIVMSG #a :" + b"x" * 499,
    ],
)
async def test_an_invalid_line_becomes_a_dead_letter_with_the_reason(around: Surroundings, body: bytes) -> None:
    around.buffer.put((7, body), (8, HELLO))
    await around.until(lambda: len(around.buffer.log) == 2)
    assert around.buffer.log == [("bury: no line for IRC", 7), ("ack", 8)]
    assert around.claimed == {8}


async def test_a_line_whose_lease_was_lost_is_left_to_its_new_owner(around: Surroundings) -> None:
    await around.until(lambda: around.buffer.waiter)
    around.buffer.put((7, HELLO))
    around.buffer.unacked.clear()
    around.buffer.put((8, HELLO))
    await around.until(lambda: around.submitted)
    assert [message for message, _ in around.submitted] == ["8"]


async def test_a_line_that_is_noted_at_the_end_is_still_said(around: Surroundings) -> None:
    around.slow = asyncio.Event()
    around.buffer.put((7, HELLO), (8, HELLO))
    await around.until(lambda: around.claimed)
    stopping = asyncio.create_task(around.sender.stop())
    await asyncio.sleep(0)
    around.slow.set()
    await stopping
    assert [message for message, _ in around.submitted] == ["7"]
    assert around.buffer.log == [("ack", 7)]


async def test_a_database_that_does_not_answer_does_not_hold_up_the_end(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydra.sender.FINISH", 0.01)
    around.slow = asyncio.Event()
    around.buffer.put((7, HELLO))
    await around.until(lambda: around.claimed)
    async with asyncio.timeout(PATIENCE):
        await around.sender.stop()
    assert around.submitted == []
    assert around.buffer.log == [("hand back", 7)]


# Refused lines, and channels that the leader is not in.


async def test_a_line_that_the_server_refuses_is_a_dead_letter_with_its_words_and_can_be_put_back(
    around: Surroundings,
) -> None:
    around.fates = [Fate(FateKind.REFUSED, "404 #a no"), SENT]
    around.buffer.put((7, HELLO), (8, HELLO))
    await around.until(lambda: len(around.buffer.log) == 2)
    assert around.buffer.log == [("bury: 404 #a no", 7), ("ack", 8)]
    assert around.claimed == {8}
    assert [kind for kind, _ in around.happened] == ["line refused"]


async def test_a_line_that_was_put_back_has_another_name_for_the_node(around: Surroundings) -> None:
    around.buffer.put((99, HELLO), detail=Detail(origin=7))
    await around.until(lambda: around.buffer.log)
    assert [name for name, _ in around.submitted] == ["7.99"]


async def test_a_line_that_was_not_sent_is_sent_later_under_another_name(around: Surroundings) -> None:
    around.fates = [Fate(FateKind.UNSENT, "not on IRC"), SENT]
    around.buffer.put((7, HELLO))
    await around.until(lambda: len(around.buffer.log) == 2)
    assert around.buffer.log == [("hand back", 7), ("ack", 7)]
    assert [name for name, _ in around.submitted] == ["7", "7-1"]


async def test_a_line_whose_fate_is_unknown_is_a_dead_letter_that_says_so(around: Surroundings) -> None:
    around.fates = [Fate(FateKind.UNKNOWN, "lost")]
    around.buffer.put((7, HELLO))
    await around.until(lambda: around.happened)
    assert around.buffer.log == [("bury: lost: it may ha", 7)]
    assert around.happened[0][0] == "line lost"


async def test_lines_for_a_channel_that_the_leader_is_not_in_wait_in_order_and_others_overtake_them(
    around: Surroundings,
) -> None:
    around.awaited = {"#b"}
    around.buffer.put((5, b"PRIVMSG #b :x"), (6, b"PRIVMSG #B,#c :y"), (7, b"PRIVMSG #a :z"))
    await around.until(lambda: around.buffer.log)
    assert [name for name, _ in around.submitted] == ["7"]
    around.awaited = set()
    around.sender.joined()
    await around.until(lambda: len(around.buffer.log) == 3)
    assert [name for name, _ in around.submitted] == ["7", "5", "6"]


async def test_a_line_that_is_refused_since_the_leader_was_kicked_waits_for_the_rejoin(around: Surroundings) -> None:
    around.fates = [Fate(FateKind.REFUSED, "404 #a no"), SENT]
    around.buffer.put((7, HELLO))
    submit = around.sender.submit

    def kicked(message: str, line: str) -> asyncio.Future[Fate] | None:
        around.awaited.add("#a")
        return submit(message, line)

    around.sender.submit = kicked
    await around.until(lambda: around.submitted)
    around.sender.submit = submit
    await around.until(lambda: not around.claimed)
    around.awaited = set()
    around.sender.joined()
    await around.until(lambda: around.buffer.log)
    assert around.buffer.log == [("ack", 7)]
    assert [name for name, _ in around.submitted] == ["7", "7-1"]


async def test_a_line_whose_channel_stays_away_becomes_a_dead_letter_with_the_reason(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydra.sender.ASIDE_TIMEOUT", -1.0)
    around.awaited = {"#a"}
    around.buffer.put((7, HELLO), (8, b"PRIVMSG #b :x"))
    await around.until(lambda: len(around.buffer.log) == 2)
    assert around.buffer.log == [("bury: not in #a: bann", 7), ("ack", 8)]
    assert around.claimed == {8}


async def test_what_waits_for_a_channel_goes_to_the_next_leader(around: Surroundings) -> None:
    around.awaited = {"#a"}
    around.buffer.put((7, HELLO), (8, HELLO), (9, b"PRIVMSG #b :x"))
    await around.until(lambda: around.buffer.log)
    around.shut()
    await around.until(lambda: len(around.buffer.log) == 3)
    assert around.buffer.log[1:] == [("hand back", 8), ("hand back", 7)]
