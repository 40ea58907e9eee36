"""A node's effects carried out in order, and what happens meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from hydra import clock
from hydra.driver import Driver
from hydra.irc.fates import Fate, Settle
from hydra.open_links import PIECE
from hydra.protocol.effects import DeliverLine, Dial, Effect, Say, StoredNode
from hydra.protocol.induction import Induction
from hydra.protocol.messages import Knock
from hydra.protocol.node import Node
from hydra.protocol.roles import Role
from hydra.protocol.times import Times
from hydra.snapshot import snapshot
from hydra.transports.address import parse_node_address
from hydra.transports.base import Accept, Handler, TransportError, TransportOptions
from tests.hydra.protocol.driver import VOTER
from tests.waiting import PATIENCE, until

HERE = parse_node_address("127.0.0.1:6174")


class FakeLink:
    """A link whose other end is a list."""

    def __init__(self, log: list[str], origin: str = "10.0.0.1") -> None:
        self.origin = origin
        self.log = log
        self.handler: Handler | None = None
        self.on_write: Callable[[bytes], None] = lambda data: None

    def write(self, data: bytes) -> None:
        self.log.append(f"> {data.decode().strip()}")
        self.on_write(data)

    def close(self) -> None:
        self.log.append("closed")


class World:
    """A driver's disk, IRC connection, watcher and transports."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.written = asyncio.Event()
        self.written.set()
        self.accept: Accept
        self.dialling: list[str] = []
        self.driver: Driver
        self.on_say: Callable[[str], bool] = lambda line: True

    # Disk.

    async def write(self, stored: StoredNode) -> None:
        await self.written.wait()
        self.log.append(f"row {stored.term}")

    # Irc.

    def connect(self) -> None:
        self.log.append("connect")

    def say(self, line: str, settle: Settle) -> bool:
        self.log.append(f"say {line}")
        return self.on_say(line)

    def leave(self, reason: str) -> None:
        self.log.append(f"leave: {reason}")

    # Watcher.

    def changed(self, role: Role, term: int, leader: int | None) -> None:
        self.log.append(f"{role.name.lower()} {term}")

    def delivered(self, term: int, idx: int, line: str) -> None:
        self.log.append(f"line {term}.{idx} {line}")

    def settled(self, message: str, line: str, fate: Fate) -> None:
        self.log.append(f"{message} {fate.kind.name.lower()}: {fate.words}: {line}")

    def happened(self, kind: str, text: str) -> None:
        self.log.append(f"{kind}: {text}")

    def failed(self, error: Exception) -> None:
        self.log.append(f"failed: {error}")

    # Transports.

    async def listen(self, address: Any, options: TransportOptions, accept: Accept) -> Any:
        self.accept, self.fault = accept, options.fault
        self.log.append(f"listen {address}")
        return self

    address = "here"

    async def close(self) -> None:
        self.log.append("listen no more")

    async def dial(self, address: Any, options: TransportOptions, opened: Accept, *, listeners: Any) -> None:
        self.dialling.append(str(address))
        raise TransportError(f"{address}: refused")

    # Actions of tests.

    def link(self) -> FakeLink:
        """A link was accepted."""
        link = FakeLink(self.log)
        link.handler = self.accept(link)
        return link

    async def joined(self, id: int = 12345) -> FakeLink:
        """A link was accepted and its node let in. It agrees to those who come later, so that they need not wait."""
        link = self.link()
        handler = link.handler
        assert handler is not None

        def agree(data: bytes) -> None:
            if data.startswith(b"KNOCK "):
                handler.received(b"MEET %s %d\r\n" % (data.split()[1], id))

        link.on_write = agree
        handler.received(b"KNOCK %d probe\r\n" % id)
        await self.until(lambda: f"> WELCOME {id}" in self.log)
        return link

    async def until(self, condition: Callable[[], Any]) -> None:
        await until(condition)

    def effects(self, *effects: Effect) -> None:
        """Let the node ask for these."""
        self.driver.tell(lambda now: list(effects))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A network of one that is being founded."""
    world = World()
    monkeypatch.setattr("hydra.open_links.listen", world.listen)
    monkeypatch.setattr("hydra.open_links.dial", world.dial)
    make_driver(world, founder=True)
    yield world
    await world.driver.abandon("the test is over")


def make_driver(world: World, **options: Any) -> None:
    now = clock.now()
    node = Node(name="alpha", times=Times(), rng=Random(7), stored=StoredNode(VOTER), now=now, **options)
    world.driver = Driver(node, TransportOptions(), world, world, world)


async def lead(world: World) -> None:
    """Found the network, and be on IRC."""
    await world.driver.start([HERE])
    await world.until(lambda: "connect" in world.log)
    world.driver.irc_connected()


async def test_nothing_is_done_before_the_row_that_it_rests_on_is_written(world: World) -> None:
    world.written.clear()
    await world.driver.start([HERE])
    await world.until(lambda: "leading 1" in world.log)
    await asyncio.sleep(0.02)
    assert "connect" not in world.log
    world.written.set()
    await world.until(lambda: "connect" in world.log)
    assert world.log.index("row 1") < world.log.index("connect")


async def test_an_address_that_cannot_be_listened_on_leaves_nothing_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listen(address: Any, options: TransportOptions, accept: Accept) -> Any:
        if world.log:
            raise TransportError("in use")
        return await world.listen(address, options, accept)

    monkeypatch.setattr("hydra.open_links.listen", listen)
    with pytest.raises(TransportError, match="in use"):
        await world.driver.start([HERE, HERE])
    assert world.log == ["listen 127.0.0.1:6174", "listen no more"]
    assert world.driver.listeners == []


async def test_a_stopping_node_leaves_irc_then_tells_the_others_then_closes_its_links(world: World) -> None:
    await lead(world)
    await world.joined()
    world.log.clear()
    await world.driver.leave()
    told = [each for each in world.log if not each.startswith(("irc: ", "waiting"))]
    assert told == [
        "leave: leaving",
        f"> DROP {world.driver.node.id} the leader leaves",
        "leave: the node stops",
        "closed",
        "listen no more",
    ]


async def test_a_silent_node_neither_speaks_nor_hears(world: World) -> None:
    await lead(world)
    link = await world.joined()
    assert link.handler is not None
    world.driver.silence("the database is away")
    world.log.clear()
    link.handler.received(b"KNOCK 9 again\r\n")
    world.driver.irc_line(":a!b@c PRIVMSG #a :hello")
    world.driver.tell(world.driver.node.submit, "1", "PRIVMSG #a :hello")
    world.effects(Say("PRIVMSG #a :x", "m"))
    world.driver.silence("once more")
    assert world.accept(FakeLink(world.log)) is None
    assert world.log == []
    assert not world.driver.may_speak()


async def test_a_row_that_is_written_too_late_changes_nothing(world: World) -> None:
    world.written.clear()
    await world.driver.start([HERE])
    await world.until(lambda: "leading 1" in world.log)
    await world.driver.abandon("stopped")
    world.log.clear()
    world.written.set()
    await asyncio.sleep(0.01)
    assert world.log == []


async def test_lines_that_come_while_another_event_is_carried_out_wait_their_turn(world: World) -> None:
    await lead(world)

    def say(line: str) -> bool:
        world.driver.irc_line(":a!b@c PRIVMSG #a :an answer at once")
        world.log.append("said")
        return True

    world.on_say = say
    world.log.clear()
    world.effects(Say("PRIVMSG #a :one", "1"), DeliverLine(9, 9, "after it"))
    assert world.log == [
        "say PRIVMSG #a :one", "said", "line 9.9 after it", "line 1.0 :a!b@c PRIVMSG #a :an answer at once",
    ]  # fmt: skip


async def test_a_line_that_irc_does_not_take_is_known_to_be_unsent(world: World) -> None:
    world.on_say = lambda line: False
    await lead(world)
    world.driver.tell(world.driver.node.submit, "7", "PRIVMSG #a :hello")
    assert world.log[-1] == f"{VOTER}/7 unsent: it cannot be sent: PRIVMSG #a :hello"


async def test_bytes_that_come_before_the_link_is_known_are_not_lost(world: World) -> None:
    await lead(world)
    link = world.link()
    assert link.handler is not None
    for byte in b"KNOCK 12345 probe\r\n":
        link.handler.received(bytes([byte]))
    assert not [each for each in world.log if each.startswith(">")]
    await world.until(lambda: "> WELCOME 12345" in world.log)


async def test_a_link_that_is_lost_before_it_is_known_is_no_link(world: World) -> None:
    await lead(world)
    link = world.link()
    assert link.handler is not None
    link.handler.closed("reset")
    link.handler.received(b"KNOCK 12345 probe\r\n")
    await asyncio.sleep(0.01)
    assert "> WELCOME 12345" not in world.log
    assert "link closed: reset" in world.log


async def test_a_flood_is_taken_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await lead(world)
    link = await world.joined()
    assert link.handler is not None
    sizes: list[int] = []
    taken = world.driver.node.data_received

    def measured(now: float, number: int, data: bytes) -> list[Effect]:
        sizes.append(len(data))
        return taken(now, number, data)

    monkeypatch.setattr(world.driver.node, "data_received", measured)
    link.handler.received(b"KNOCK 12345 probe\r\n" * 1000)
    assert max(sizes) == PIECE
    assert sum(sizes) == 19_000
    assert world.log.count("> WELCOME 12345") == 1001


async def test_an_address_that_cannot_be_reached_is_tried_again_and_reported_once(world: World) -> None:
    make_driver(world, targets=["10.0.0.9:6174"])
    world.driver.node.core.times = Times(max_ping=0.01)
    await world.driver.start([HERE])
    await world.until(lambda: len(world.dialling) > 3)
    reports = [each for each in world.log if each.startswith("link failed")]
    assert reports == ["link failed: to 10.0.0.9:6174: 10.0.0.9:6174: refused"]


async def test_a_target_that_takes_long_to_answer_is_not_dialled_beside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take each link that is opened to it in the end, and everything would be said on all of them."""
    answered = asyncio.Event()

    async def dial_slowly(*arguments: Any, **options: Any) -> None:
        world.dialling.append("begun")
        await answered.wait()
        raise TransportError("refused")

    monkeypatch.setattr("hydra.open_links.dial", dial_slowly)
    make_driver(world, targets=["10.0.0.9:6174"])
    asked: list[Dial] = []
    carry_out = world.driver._carry_out

    def watch(effect: Effect) -> None:
        asked.extend([effect] if isinstance(effect, Dial) else [])
        carry_out(effect)

    monkeypatch.setattr(world.driver, "_carry_out", watch)
    world.driver.node.core.times = Times(max_ping=0.01)
    await world.driver.start([HERE])
    await world.until(lambda: len(asked) > 3)
    assert world.dialling == ["begun"]
    answered.set()
    await world.until(lambda: len(world.dialling) > 1)


async def test_a_message_that_is_too_long_for_a_line_is_dropped_and_reported(world: World) -> None:
    await lead(world)
    link = await world.joined()
    world.driver.tell(world.driver.node.drop, 12345, "x" * 3000)
    assert any(each.startswith("message dropped: DROP would have") for each in world.log)
    assert link.log is world.log


async def test_a_leader_may_speak_as_long_as_its_lease_lasts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not world.driver.may_speak()
    await lead(world)
    assert world.driver.may_speak()
    later = clock.now() + Times().lease
    monkeypatch.setattr(clock, "now", lambda: later)
    assert not world.driver.may_speak()


async def test_a_machine_that_was_suspended_says_nothing_on_irc_and_leaves_it_before_anything_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers have stood still, and so has CLOCK_MONOTONIC; the clock that leases go by has not."""
    await lead(world)
    other = await world.joined()
    asleep = clock.now() + 3600.0
    monkeypatch.setattr(clock, "now", lambda: asleep)
    assert not world.driver.may_speak()
    world.log.clear()
    assert other.handler is not None
    other.handler.received(b"SEND 12345 PRIVMSG #c :late\r\n")
    assert world.log[0] == "leave: no majority has answered in time"
    assert not any(each.startswith("say ") for each in world.log)


def test_the_clock_goes_on_while_the_machine_sleeps() -> None:
    assert abs(clock.now() - time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))) < PATIENCE


async def test_a_line_that_makes_the_node_raise_costs_its_link_and_leaves_the_node_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lead(world)
    good, bad = await world.joined(12345), await world.joined(54321)
    node = world.driver.node
    on_knock = Induction.on_knock

    def half_done(self: Induction, message: Knock, link: Any) -> None:
        on_knock(self, message, link)
        self.core.members.register(99, None, self.core.now)
        self.core.term = 77
        if message.ind == 666:
            raise RecursionError("unforeseen")

    monkeypatch.setattr(Induction, "on_knock", half_done)
    before = snapshot(node, 0.0)
    assert bad.handler is not None
    bad.handler.received(b"DROP 12345 in the same piece\r\nKNOCK 666 probe\r\n")
    after = snapshot(node, 0.0)
    assert (after.role, after.term, after.leader, after.members) == ("leading", 1, node.id, before.members)
    assert "link closed: a fault in what came over it: RecursionError" in world.log
    assert "fault: link 2 with 10.0.0.1 was given up: RecursionError: unforeseen" in world.log
    assert world.driver.faults == 1
    assert not any(each.startswith("> DROP") for each in world.log)
    assert good.handler is not None
    world.log.clear()
    good.handler.received(b"KNOCK 12345 probe\r\n")
    assert "> WELCOME 12345" in world.log


async def test_an_irc_line_that_makes_the_node_raise_costs_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lead(world)
    monkeypatch.setattr("hydra.driver.passes", lambda *args: 1 / 0)
    world.driver.irc_line("PRIVMSG #c :one")
    monkeypatch.undo()
    world.driver.irc_line("PRIVMSG #c :two")
    assert [each for each in world.log if each.startswith("line ")] == ["line 1.0 PRIVMSG #c :two"]


async def test_a_fault_that_a_transport_tells_of_is_counted_and_among_the_events(world: World) -> None:
    await world.driver.start([HERE])
    for _ in range(2):
        world.fault("datagram from 192.0.2.1", RecursionError("unforeseen"))
    assert world.driver.faults == 2
    told = "fault: datagram from 192.0.2.1 was given up: RecursionError: unforeseen"
    assert world.log.count(told) == 1, "once a minute"


async def test_a_link_that_cannot_be_written_to_for_an_unforeseen_reason_is_closed_alone(world: World) -> None:
    await lead(world)
    good, bad = await world.joined(12345), await world.joined(54321)

    def broken(data: bytes) -> None:
        raise MemoryError

    bad.on_write = broken
    world.log.clear()
    world.driver.irc_line("PRIVMSG #c :one")
    assert "link closed: cannot be written to: MemoryError" in world.log
    assert not world.driver.over
    assert good.handler is not None
    world.log.clear()
    good.handler.received(b"KNOCK 12345 probe\r\n")
    assert "> WELCOME 12345" in world.log


async def test_a_node_with_a_fault_leaves_irc_and_says_so(world: World) -> None:
    await lead(world)

    def fault(now: float) -> list[Effect]:
        raise ZeroDivisionError("no such thing")

    world.driver.tell(fault)
    assert world.log[-2:] == ["leave: a fault: no such thing", "failed: no such thing"]
    assert world.driver.over
