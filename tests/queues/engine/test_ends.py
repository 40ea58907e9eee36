"""docs/architecture.md, "How a message ends": each end is brought about, and leaves what its row says."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest
from channels.db import database_sync_to_async
from django.test import override_settings
from kombu.connection import Connection
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

import queues.celery.transport  # noqa: F401 - makes fivewire:// known
from brokersite.environment import CHECKOUT
from hydra.metrics import node_metrics
from hydra.models import Node as HydraNode
from peers.metrics import PeersCollector
from peers.service import PeerbusService
from queues.api import QueueNotFound, publish
from queues.database.parameters import connection_parameters
from queues.engine.api import Destination, Engine, Forward
from queues.models import Outcome
from queues.monitoring.metrics import EndsCollector
from queues.operations.keys import create_key
from queues.operations.messages import purge, remove_messages
from queues.upkeep import keep_archive
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, bury
from tests.queues.engine.mailbox.test_service import Peer
from tests.waiting import PATIENCE
from wire.metrics import WireCollector
from wire.server import Server

pytestmark = pytest.mark.django_db(transaction=True)

HEADS = ["end", "log", "counter", "event"]
COUNTER = re.compile(r'`(fivewire_\w+)(?:\{\w+(?:="(\w+)")?\})?`')
SAMPLE = re.compile(r'^(fivewire_\w+)(?:\{(.*)\})? (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """A row of the tables."""

    log: str
    counter: str
    event: str

    @property
    def counted(self) -> tuple[str, str]:
        """The counter: its name, and the value of its label if the row is about one."""
        [(name, value)] = COUNTER.findall(self.counter)
        return name, value

    @property
    def loggers(self) -> set[str]:
        return set(re.findall(r"`((?:queues|wire|hydra)\.[\w.]+)`", self.log))

    @property
    def is_logged(self) -> bool:
        """Whether every such end is in the log, and not one of a kind."""
        return self.log.startswith("`")

    def words(self, kind: str) -> list[str]:
        """Outcomes, or events of the queue's chain."""
        return re.findall(rf"(?:^|; ){kind} `([\w-]+)`", self.event)


def read_rows() -> dict[str, Row]:
    page = (CHECKOUT / "docs" / "architecture.md").read_text()
    rows, above = {}, Row("", "", "")
    for line in page.split("## How a message ends\n")[1].split("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == len(HEADS) and cells != HEADS and not cells[0].startswith("--"):
            end, log, counter, event = cells
            rows[end] = above = Row(above.log if log == "the same" else log, counter, event)
    return rows


ROWS = read_rows()


@dataclass
class World:
    """Where messages end: an audited queue, engines that serve peers, Celery's connections."""

    make_engine: MakeEngine
    store: Store
    broker_url: str
    engines: list[Engine] = field(default_factory=list)
    #: The queue whose archive and chain have the end.
    queue: int = 0
    name: str = "ends"

    async def start(self, **options: Any) -> Engine:
        self.engines.append(await self.make_engine(mailboxes=True, **options))
        return self.engines[-1]

    def make(self, **policy: Any) -> int:
        self.queue = self.store.queue("ends", audited=True, **policy)
        return self.queue

    async def started(self, **policy: Any) -> Producer:
        """A producer of the queue, made with a policy."""
        self.make(**policy)
        return Producer(await self.start())

    async def kombu(self, act: Callable[[Connection], object], **options: Any) -> None:
        """Do something over a connection of Celery's, which is closed then."""

        def run() -> None:
            with Connection(self.broker_url, transport_options=options) as connection:
                act(connection)

        await asyncio.to_thread(run)

    async def alice(self) -> Peer:
        key = (await database_sync_to_async(create_key)("peers"))[0].pk
        return await Peer(await self.start(), "alice", key).here()

    def counters(self) -> Counter[tuple[str, str]]:
        """What the pages of metrics count, over all engines: by name and value of the label, and by name."""
        found: Counter[tuple[str, str]] = Counter()
        for collector in (EndsCollector(), *map(of_engine, self.engines)):
            for name, label, value in samples(collector):
                found[name, label] += value
                if label:
                    found[name, ""] += value
        return found

    def outcomes(self) -> set[str]:
        return {Outcome(row["outcome"]).name.lower() for row in self.store.archived(self.queue)}

    def chain(self) -> set[str]:
        sql = (
            "select distinct event from queues_audit join queues_auditchain c on c.id = chain_id"
            " where name = (select 'queue:' || %s::text)"
        )
        return {row["event"] for row in self.store.rows(sql, self.name)}



def of_engine(engine: Engine) -> Collector:
    """The collector of a site whose peers this engine serves."""
    service = Mock(PeerbusService, sessions=(), ignored={}, closed={}, over_quota=Counter(), failures=0)
    service.engine_now = engine
    return PeersCollector(service)


def samples(collector: Collector) -> list[tuple[str, str, int]]:
    registry = CollectorRegistry()
    registry.register(collector)
    return read_samples(generate_latest(registry).decode())


def read_samples(page: str) -> list[tuple[str, str, int]]:
    """Name, value of a label, and figure, of counters."""
    return [
        (name, label, int(float(value)))
        for name, labels, value in SAMPLE.findall(page) if name.endswith("_total")
        for label in re.findall(r'="([^"]*)"', labels) or [""]
    ]  # fmt: skip


End = Callable[[World], Awaitable[None]]


def django(function: Callable[..., Any], *arguments: Any, **named: Any) -> Awaitable[Any]:
    """Call what uses Django's connection, in its thread."""
    return database_sync_to_async(function)(*arguments, **named)


async def settled(world: World) -> None:
    producer = await world.started()
    await producer.publish("ends", b"x")
    await Consumer(await producer.engine.queue("ends")).bodies(1)


async def dead(world: World) -> None:
    producer = await world.started()
    await bury(producer.engine, "ends", b"x")
    await world.store.until(lambda: world.store.counts(world.queue)[3] == 1, "the dead letter")
    assert world.store.messages(world.queue)[0]["error"] == "no"


async def expired(world: World) -> None:
    producer = await world.started(message_ttl="0.1 s")
    await producer.publish("ends", b"x")


async def dropped(world: World) -> None:
    producer = await world.started(max_length=1, overflow="drop-oldest")
    await producer.publish("ends", b"x", b"y")


async def dropped_by_django(world: World) -> None:
    await world.started(max_length=1, overflow="drop-oldest")
    for _ in range(2):
        await django(publish, "ends", b"x")


async def purged(world: World) -> None:
    producer = await world.started()
    await producer.publish("ends", b"x")
    assert await django(purge, "ends", by="anna") == 1


async def purged_in_memory(world: World) -> None:
    producer = await world.started()
    await producer.publish("ends", b"x", b"y")
    consumer = Consumer(await producer.engine.queue("ends"))
    assert await consumer.bodies(1, ack=False) == [b"x"]
    await django(purge, "ends", by="anna")


async def removed(world: World) -> None:
    await world.started()
    id = await django(publish, "ends", b"x")
    assert await django(remove_messages, "ends", [id], by="anna") == 1


async def idle(world: World) -> None:
    """A subscription with a message was polled long ago, and its end has been told."""
    keeper = await world.start()
    subscription = await keeper.subscriptions.create(b"t", 1, None)
    world.queue, world.name = subscription.buffer.id, subscription.buffer.policy.name
    await Producer(keeper).publish("topic:t", b"x")
    await keeper.stop()
    await world.store.change("update queues_queue set audited = true where id = %s returning id", world.queue)
    await world.store.change("update queues_subscription set used_at = now() - interval '90 days' returning id")


async def forgotten(world: World) -> None:
    await idle(world)
    first = await world.start(idle_subscription_days=30, idle_subscription_notice=7)
    told = "select from queues_subscription where ends_at is not null"
    await world.store.until(lambda: world.store.rows(told), "the notice")
    await first.stop()
    await world.store.change("update queues_subscription set ends_at = now() returning id")
    await world.start(idle_subscription_days=30, idle_subscription_notice=7)


async def forgotten_by_upkeep(world: World) -> None:
    await idle(world)
    await world.start(idle_subscription_days=0)  # engines do this, too
    with override_settings(BROKER_IDLE_SUBSCRIPTION_DAYS=30, BROKER_IDLE_SUBSCRIPTION_NOTICE_DAYS=7):
        await django(keep_archive)
        await world.store.change("update queues_subscription set ends_at = now() returning id")
        await django(keep_archive)


async def temporary(world: World) -> None:
    def act(connection: Connection) -> None:
        channel = connection.default_channel
        channel.queue_declare("temporary", auto_delete=True)
        connection.Producer().publish(1, routing_key="temporary")
        channel.queue_delete("temporary")

    await world.kombu(act)


async def unreadable(world: World) -> None:
    def act(connection: Connection) -> None:
        channel, taken = connection.default_channel, list[Any]()
        channel.queue_declare("temporary", auto_delete=True)
        [row] = world.store.rows("select id from queues_queue where name = 'temporary'")
        world.store.insert(row["id"], b"of no Celery client")
        channel.basic_consume("temporary", no_ack=True, callback=taken.append, consumer_tag="reader")
        connection.drain_events(timeout=PATIENCE)
        assert taken == []

    await world.kombu(act)


async def refused(world: World) -> None:
    producer = await world.started(max_length=1)
    await producer.publish("ends", b"x", b"y")
    await producer.publish("nowhere", b"x")
    assert len(producer.failed) == 2


async def refused_by_django(world: World) -> None:
    with pytest.raises(QueueNotFound):
        await django(publish, "nowhere", b"x")


async def unheard(world: World) -> None:
    await Producer(await world.start()).publish("topic:unheard", b"x")


async def unheard_by_django(world: World) -> None:
    assert await django(publish, "topic:unheard", b"x") is None


async def unroutable(world: World) -> None:
    def act(connection: Connection) -> None:
        for _ in range(2):
            connection.Producer().publish(1, routing_key="nowhere")
            connection.Producer().publish(1, exchange="amq.topic", routing_key="nothing.bound")

    await world.kombu(act)


async def unstored(world: World) -> None:
    world.make(max_length=1)
    def act(connection: Connection) -> None:
        for n in range(2):
            connection.Producer().publish(n, routing_key="ends")

    await world.kombu(act, confirm_publish=False)


async def transient(world: World) -> None:
    engine = await world.start(transient_messages=1)
    await engine.subscriptions.create(b"t", 0, None)
    await Producer(engine).publish("topic:t", b"x", b"y")


async def letter_to_nobody(world: World) -> None:
    alice = await world.alice()
    await alice.send("absent", "m1")
    assert await alice.ask() == ["alice"]


async def letter_to(world: World, address: str) -> None:
    alice = await world.alice()
    for n in range(2):
        alice.room.take_in(Forward(alice.mailbox, f"m{n}", Destination.parse(address), b"{}"))
        await alice.ask()


async def letter_to_full(world: World) -> None:
    world.make(max_length=1)
    await letter_to(world, "ends")


async def letter_again(world: World) -> None:
    await (await world.alice()).send("alice", "m1", "m1")


#: Each end by its row: a function, or the test elsewhere.
ENDS: dict[str, End | str] = {
    "settled: acknowledged, DONE, a task that has ended": settled,
    "dead letter: rejected, attempts used up, not readable": dead,
    "dead letter, since the database refuses to deliver or settle it":
        "tests.queues.engine.test_poison_rows:"
        "test_an_expired_message_that_cannot_be_removed_is_a_dead_letter_and_the_others_go",
    "its time to live is over": expired,
    "the oldest of a full queue (`drop-oldest`)": dropped,
    "the same, for a message of Django's or Celery's": dropped_by_django,
    "purged, or deleted with its queue, subscription or peer": purged,
    "purged while a node held it in memory": purged_in_memory,
    "removed alone, by an operator or by Overhop": removed,
    "its subscription was polled by nobody for `BROKER_IDLE_SUBSCRIPTION_DAYS`": forgotten,
    "the same, by Celery's upkeep": forgotten_by_upkeep,
    "its temporary queue of Celery's has no consumer": temporary,
    "in such a queue, and not readable": unreadable,
    "a line that IRC refuses": "tests.hydra.test_runner:test_lines_that_came_to_no_good_end_are_counted",
    "a line under way to IRC when the connection or the node is lost":
        "tests.hydra.test_runner:test_lines_that_came_to_no_good_end_are_counted",
    "refused: a full queue (`reject`), also behind a route, no such queue, a value that cannot be stored, no database":
        refused,
    "the same, of Django's or Celery's": refused_by_django,
    "refused for want of a right": "tests.wire.test_runwire:test_a_publish_without_the_right_to_it_is_counted",
    "to a topic without a subscription": unheard,
    "the same, of Django's": unheard_by_django,
    "of Celery's, to no queue or no binding": unroutable,
    "of Celery's without confirms, refused": unstored,
    "QoS 0: nobody takes it now, its reader is slow, it is too large for another node": transient,
    "QoS 0, in the memory of a node that dies":
        "tests.queues.engine.cluster.test_membership:test_a_dead_nodes_messages_are_delivered_by_another",
    "SSPQ: half a message at the end of the connection":
        "tests.wire.test_runwire:test_a_send_that_was_cut_off_is_counted",
    "SSPQ: a message that is refused":
        "tests.wire.test_runwire:test_sends_that_are_refused_are_counted_and_told_by_the_log_once_a_minute",
    "an envelope to a name that no peer has": letter_to_nobody,
    "an envelope to a queue that is not there": lambda world: letter_to(world, "nowhere"),
    "an envelope to a full queue": letter_to_full,
    "an envelope to a topic without a subscription, or to all when nobody is there":
        lambda world: letter_to(world, "topic:unheard"),
    "an envelope that was sent before, or over a connection that was taken over": letter_again,
    "an envelope that the database refuses":
        "tests.queues.engine.test_faults:test_a_letter_that_cannot_be_stored_ends_its_senders_connection_and_no_others",
    "an envelope that is malformed or not allowed":
        "tests.peers.test_session:test_frames_that_mean_nothing_are_counted_by_reason",
    "a line from IRC that a node missed, or could not store":
        "tests.hydra.test_runner:test_lines_that_came_to_no_good_end_are_counted",
}  # fmt: skip
HERE = [end for end, way in ENDS.items() if not isinstance(way, str)]
ELSEWHERE = [end for end, way in ENDS.items() if isinstance(way, str)]


def test_every_row_has_its_end_and_every_end_its_row() -> None:
    assert [*ROWS] == [*ENDS]


@pytest.mark.parametrize("end", HERE)
async def test_an_end_leaves_the_line_the_count_and_the_event_of_its_row(
    end: str, make_engine: MakeEngine, store: Store, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    row, bring_about = ROWS[end], ENDS[end]
    assert not isinstance(bring_about, str)
    world = World(make_engine, store, "fivewire://" + database_url.partition("://")[2])
    before = world.counters()[row.counted]
    with caplog.at_level(logging.WARNING):
        await bring_about(world)
        await store.until(lambda: world.counters()[row.counted] > before, f"the count of {row.counted}")
        for outcome in row.words("outcome"):
            await store.until(lambda: outcome in world.outcomes(), f"the outcome {outcome}")  # noqa: B023
        for event in row.words("chain"):
            await store.until(lambda: event in world.chain(), f"the event {event}")  # noqa: B023
    told = Counter(record.name for record in caplog.records if record.name.split(".")[0] in ("queues", "wire", "peers"))
    assert set(told) == (row.loggers if row.is_logged else set())


@pytest.mark.parametrize("end", ELSEWHERE)
def test_the_other_ends_are_tested_elsewhere(end: str) -> None:
    module, name = str(ENDS[end]).split(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.fixture
def hydra_node(transactional_db: None) -> None:
    HydraNode.objects.create(name="alpha", voter="0" * 16)


@pytest.mark.usefixtures("hydra_node")
async def test_every_counter_of_the_table_is_on_a_page_of_metrics(make_engine: MakeEngine) -> None:
    engine = await make_engine(mailboxes=True)
    pages = [EndsCollector(), of_engine(engine), WireCollector(Server(engine))]
    found = [sample for collector in pages for sample in samples(collector)]
    found += read_samples((await node_metrics(connection_parameters())).decode())
    known = {(name, label) for name, label, _ in found} | {(name, "") for name, _, _ in found}
    known |= {("fivewire_isolated_failures_total", ""), ("fivewire_peers_ignored_total", "")}  # none before the first
    assert {row.counted for row in ROWS.values()} <= known
