"""The brokers that are measured, each with one protocol."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from django.conf import settings

from brokersite.rigs.bench import deployment
from brokersite.rigs.bench.drivers import RunDriver, amqp, jetstream
from brokersite.rigs.bench.drivers.blipmq import BlipMQ
from brokersite.rigs.bench.drivers.overhop import Overhop
from brokersite.rigs.bench.drivers.peerbus import Peer, Peerbus
from brokersite.rigs.bench.drivers.sspq import Sspq
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.measures import MEASURES, Figures, MeasurementPlan
from brokersite.rigs.bench.servers import private_nats, private_rabbitmq, syncs_always
from brokersite.rigs.bench.stream import Endpoint, Login
from brokersite.rigs.bench.usage import CpuMeter
from wire.management.serving import LISTENERS
from wire.net.address import AddressError, parse_address

#: The default address of each protocol.
ADDRESSES: Final = LISTENERS | {"peerbus": "127.0.0.1:8000"}
PROTOCOLS: Final = tuple(ADDRESSES)
OTHERS: Final = ("rabbitmq", "nats")
AUDITED: Final = "audited"
PEERBUS_PATH: Final = "/ws/peerbus"
SMALLEST: Final = 8


@dataclass(frozen=True)
class Deployment:
    """Access to the deployment under test; `addresses` are those of its protocols that are not the usual ones."""

    addresses: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    authority: str | None = None
    sspq_queue: str | None = None


#: Makes a queue and a driver for it, until the stack ends, given the number of subscribers.
Drive = Callable[[ExitStack, int], RunDriver]


class System(NamedTuple):
    """A broker to measure; `notes` are said under the results."""

    name: str
    measures: tuple[str, ...]
    meter: CpuMeter
    drive: Drive
    notes: tuple[str, ...] = ()

    def measure(self, name: str, plan: MeasurementPlan) -> Figures:
        """One measurement. Raises BenchError."""
        with ExitStack() as stack:
            driver = self.drive(stack, plan.subscribers if name == "fanout" else 1)
            return MEASURES[name](driver, plan, self.meter)


def open_system(stack: ExitStack, words: str, plan: MeasurementPlan, reach: Deployment, scratch: Path) -> System:
    """The system that the user means: a protocol, rabbitmq or nats, and after = where it is. Raises BenchError.

    What is made for it, a key or a server, is gone when the stack ends.
    """
    kind, _, where = words.partition("=")
    if kind == "rabbitmq":
        return _rabbitmq(stack, where, plan, scratch)
    if kind == "nats":
        return _nats(stack, where, plan, scratch)
    audited = kind == AUDITED
    if audited:
        kind = "blipmq"
    if kind not in ADDRESSES:
        raise BenchError(f"{words!r} is nothing to compare with: {', '.join((*PROTOCOLS, AUDITED, *OTHERS))}.")
    endpoint = _endpoint(where or reach.addresses.get(kind) or ADDRESSES[kind], reach.authority)
    name = f"{kind}{', audited' if audited else ''}{f' at {endpoint}' if where else ''}"
    if kind == "blipmq":
        return _blipmq(stack, name, endpoint, plan, reach, audited)
    if kind == "overhop":
        return _overhop(name, endpoint, plan)
    if kind == "sspq":
        return _sspq(name, endpoint, plan, reach)
    return _peerbus(stack, name, endpoint, plan, reach)


def named_apart(names: Iterable[str]) -> list[str]:
    """The names of systems, of which those that are equal are numbered: each has figures of its own."""
    seen: Counter[str] = Counter()
    apart = []
    for name in names:
        seen[name] += 1
        apart.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return apart


def _endpoint(text: str, authority: str | None) -> Endpoint:
    try:
        address = parse_address(text)
    except AddressError as error:
        raise BenchError(str(error)) from error
    return Endpoint(address.host, address.port, authority)


def _blipmq(
    stack: ExitStack, name: str, endpoint: Endpoint, plan: MeasurementPlan, reach: Deployment, audited: bool
) -> System:
    own = deployment.own_name()
    key = reach.key or deployment.make_key(stack, own, "blipmq")

    def drive(until: ExitStack, copies: int) -> RunDriver:
        topic = f"{own}-{secrets.token_hex(3)}"
        driver = BlipMQ(endpoint, key, topic, size=plan.size, prefetch=plan.prefetch)
        return replace(driver, subscriptions=deployment.make_subscriptions(until, driver, copies, audited))

    measures = ("latency", "throughput", "backlog", "fanout", "connections")
    return System(name, measures, CpuMeter(endpoint, with_postgres=True), drive)


def _overhop(name: str, endpoint: Endpoint, plan: MeasurementPlan) -> System:
    def drive(until: ExitStack, copies: int) -> RunDriver:
        return Overhop(endpoint, deployment.make_queue(until), size=plan.size, prefetch=plan.prefetch)

    measures = ("latency", "throughput", "backlog", "connections")
    return System(name, measures, CpuMeter(endpoint, with_postgres=True), drive)


def _sspq(name: str, endpoint: Endpoint, plan: MeasurementPlan, reach: Deployment) -> System:
    queue = deployment.unused_queue(reach.sspq_queue or settings.BROKER_SSPQ_QUEUE)

    def drive(until: ExitStack, copies: int) -> RunDriver:
        driver = Sspq(endpoint, size=plan.size, prefetch=plan.prefetch)
        until.callback(deployment.remove_messages_of, queue, driver.run, plan.size)
        return driver

    note = "SSPQ answers neither SEND nor CONFIRM: its rate ends with the last CONFIRM sent."
    return System(name, ("latency", "throughput", "backlog"), CpuMeter(endpoint, with_postgres=True), drive, (note,))


def _peerbus(stack: ExitStack, name: str, endpoint: Endpoint, plan: MeasurementPlan, reach: Deployment) -> System:
    own = deployment.own_name()
    key = reach.key or deployment.make_key(stack, own, "peerbus")

    def drive(until: ExitStack, copies: int) -> RunDriver:
        one = f"{own}-{secrets.token_hex(3)}"
        driver = Peerbus(endpoint, PEERBUS_PATH, key, one, plan.consumers, size=plan.size, prefetch=plan.prefetch)
        recipients = [driver.recipient(index) for index in range(plan.consumers)]
        senders = [driver.sender(index) for index in range(max(plan.producers * plan.consumers + 1, plan.connections))]
        until.callback(deployment.remove_peers, [*recipients, *senders])
        for recipient in recipients:  # letters to a name that was never registered are dropped
            Peer(driver, recipient).close()
        return driver

    note = "peerbus: every letter is signed, and recorded in the audit chain, whose rows stay."
    measures = ("latency", "throughput", "backlog", "connections")
    return System(name, measures, CpuMeter(endpoint, with_postgres=True), drive, (note,))


def _rabbitmq(stack: ExitStack, url: str, plan: MeasurementPlan, scratch: Path) -> System:
    name = "RabbitMQ quorum"
    if url:
        login = Login.from_url(url, 5672)
        name = f"{name} at {login}"
    else:
        server = stack.enter_context(private_rabbitmq(scratch))
        name = f"RabbitMQ {server.version} quorum"
        login = Login(Endpoint("127.0.0.1", server.port))

    def drive(until: ExitStack, copies: int) -> RunDriver:
        own = deployment.own_name()
        queues = tuple(f"{own}-{copy}" for copy in range(copies))
        exchange = own if copies > 1 else ""
        keeper = until.enter_context(closing(amqp.AmqpConnection(login)))
        until.callback(keeper.delete, queues, exchange)
        for queue in queues:
            keeper.declare(queue)
        if exchange:
            keeper.fan_out(exchange, queues)
        return amqp.Amqp(login, queues, exchange, size=plan.size, prefetch=plan.prefetch)

    return System(name, tuple(MEASURES), CpuMeter(login.endpoint, with_postgres=False), drive)


def _nats(stack: ExitStack, url: str, plan: MeasurementPlan, scratch: Path) -> System:
    if url:
        login = Login.from_url(url, 4222)
        note = "JetStream's durability is what that server's sync_interval says; by default it syncs every two minutes."
    else:
        server = stack.enter_context(private_nats(scratch))
        login = Login(Endpoint("127.0.0.1", server.port))
        note = (
            "JetStream syncs each message before it answers (sync_interval: always)."
            if syncs_always(server.version)
            else f"NATS {server.version} cannot sync before it answers: its PubAck promises less than a confirm does."
        )

    def drive(until: ExitStack, copies: int) -> RunDriver:
        driver = jetstream.JetStream(login, deployment.own_name(), copies, size=plan.size, prefetch=plan.prefetch)
        keeper = until.enter_context(closing(jetstream.NatsConnection(login)))
        keeper.create(driver, plan.prefetch)
        until.callback(keeper.api, f"STREAM.DELETE.{driver.stream}")
        return driver

    version = jetstream.NatsConnection(login).server.get("version", "?")
    meter = CpuMeter(login.endpoint, with_postgres=False)
    name = f"NATS {version} JetStream{f' at {login}' if url else ''}"
    return System(name, tuple(MEASURES), meter, drive, (note,))
