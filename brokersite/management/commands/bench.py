"""``manage.py bench``: how fast this deployment is, and others beside it."""

from __future__ import annotations

import os
import platform
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from django.core.management.base import CommandError, CommandParser

from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.measures import MEASURES, MeasurementPlan
from brokersite.rigs.bench.report import Rounds
from brokersite.rigs.bench.systems import (
    ADDRESSES,
    AUDITED,
    OTHERS,
    PROTOCOLS,
    SMALLEST,
    Deployment,
    System,
    named_apart,
)
from brokersite.rigs.bench.systems import open_system as open_one
from brokersite.rigs.clients import bench as clients
from brokersite.rigs.process import ProcessFailed
from queues.config import extras
from queues.etl.errors import EtlError
from queues.management.shell import REFUSED, SubcommandCommand, bar, ended_by_sigterm, number, terminal_line

#: Part of a measurement's seconds that a system is warmed up with, unmeasured.
WARM_UP = 0.5
#: The options that are a measurement's parameters.
MEASUREMENT_OPTIONS = (
    "seconds", "size", "producers", "consumers", "window", "prefetch", "rate", "subscribers", "connections",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a benchmark: its figures, and what is removed at its end."""

    rounds: Rounds
    scratch: Path
    stack: ExitStack
    #: Shows on a terminal the part that is done, and what is done now.
    progress: Callable[[float, str], None]


class Command(SubcommandCommand):
    """Measure throughput, latency, backlogs, fan-out and connections, and print a table."""

    help = (
        "Measure the running broker with queues and keys made for it, and others in turns with it. Every message is "
        "durable, confirmed, numbered and checked. Exit status: 0 done, 1 refused, or messages were lost, 2 usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="blipmq|overhop|sspq|peerbus|clients|celery|etl")
        for protocol in PROTOCOLS:
            one = do.add_parser(protocol, help=f"the broker over {protocol}")
            _add_load(one, protocol)
        programs = do.add_parser("clients", help="programs as users write them, by each product's own client")
        _add_clients(programs)
        celery = do.add_parser("celery", help="calls and tasks with a worker of its own, through a queue of its own")
        celery.add_argument("--tasks", type=number(1), default=3000, metavar="N", help="default: %(default)s")
        celery.add_argument("--producers", type=number(1), default=1, metavar="N", help="processes that call delay()")
        celery.add_argument("--worker", default="", metavar="OPTIONS", help="more options for `celery worker`")
        celery.add_argument("--compare", nargs="+", default=[], metavar="SYSTEM", help="rabbitmq, or rabbitmq=amqp://…")
        etl = do.add_parser("etl", help="the export beside COPY TO, with an archive in a database made for it")
        etl.add_argument(
            "--rows", type=number(1), default=5_000_000, metavar="N", help="messages; default: %(default)s"
        )
        # Bursts of 4 s over BlipMQ and Overhop left segments of 730 to 2,100 messages on average, in 1.1 to 1.4 ranges,
        # and 0 to 4.5 % of the messages in rows.
        etl.add_argument(
            "--segments", type=number(1), default=1000, metavar="N", help="messages a segment; default: %(default)s"
        )
        etl.add_argument(
            "--single", type=int, choices=range(101), default=5, metavar="PERCENT",
            help="of the messages that have a row each; default: %(default)s",
        )  # fmt: skip
        for one, rounds in (programs, 3), (celery, 3), (etl, 1):
            _add_output(one, rounds)

    def do_blipmq(self, options: dict[str, Any]) -> None:
        plan = MeasurementPlan(**{name: options[name] for name in MEASUREMENT_OPTIONS})
        first, address = options["do"], options["address"]
        addresses = {first: address} if address else {}
        deployment = Deployment(addresses, options["key"], options["tls_ca"], options["sspq_queue"])
        with self._run(options) as run:
            words = (first, *options["compare"])
            opened = [open_one(run.stack, word, plan, deployment, run.scratch) for word in words]
            names = named_apart(system.name for system in opened)
            systems = [system._replace(name=name) for system, name in zip(opened, names, strict=True)]
            self._play(systems, plan, options, run)
            notes = list(dict.fromkeys(note for system in systems for note in system.notes))
        text = f"{plan.seconds:g} s each, {plan.size} B, {plan.producers} producers, {plan.consumers} consumers, "
        text += f"window {plan.window}, prefetch {plan.prefetch}; latency at {plan.rate:,} messages/s offered"
        self._tell(run.rounds, options, text, notes)

    do_overhop = do_sspq = do_peerbus = do_blipmq

    def _play(self, systems: list[System], plan: MeasurementPlan, options: dict[str, Any], run: Run) -> None:
        """All rounds; the next one takes the systems in the opposite order."""
        wanted = options["measure"] or list(MEASURES)
        steps = [
            (turn, measure, system)
            for turn in range(-1, options["rounds"])
            for measure in (wanted if turn >= 0 else ["throughput"])
            for system in (systems if turn % 2 == 0 else reversed(systems))
            if measure in system.measures
        ]
        warm_up = replace(plan, seconds=max(0.1, WARM_UP * plan.seconds))
        for done, (turn, measure, system) in enumerate(steps):
            what = f"round {turn + 1} of {options['rounds']}" if turn >= 0 else "warming up"
            run.progress(done / len(steps), f"{what}: {system.name}, {measure}")
            if turn < 0:
                system.measure(measure, warm_up)
            else:
                run.rounds.add(measure, system.name, system.measure(measure, plan))

    def do_clients(self, options: dict[str, Any]) -> None:
        plan = clients.ClientsPlan(**{name: options[name] for name in clients.OPTIONS})
        addresses = {name: where for name in ("blipmq", "overhop") if (where := options[name])}
        with self._run(options) as run:
            reach = Deployment(addresses, options["key"])
            measures = options["measure"] or clients.USUAL
            rows = clients.open_rows(
                run.stack, options["compare"], measures, plan, reach, run.scratch, options["javascript"]
            )
            for turn in range(options["rounds"]):
                for done, row in enumerate(rows if turn % 2 == 0 else reversed(rows)):
                    part = (turn + done / len(rows)) / options["rounds"]
                    run.progress(part, f"round {turn + 1} of {options['rounds']}: {row.name}, {row.measure}")
                    run.rounds.add(row.measure, row.name, row.take(), row.against)
        text = f"{plan.messages:,} messages of {plan.size} B, window {plan.window}, prefetch {plan.prefetch}, "
        text += f"{plan.tasks} tasks, {plan.jobs:,} jobs"
        if "memory" in measures:
            text += f"; memory: {plan.backlog:,} messages in the queue, {plan.consumers:,} idle consumers"
        self._tell(run.rounds, options, text, [])

    def do_celery(self, options: dict[str, Any]) -> None:
        if problem := extras.problem("celery"):
            raise CommandError(problem, returncode=REFUSED)
        from brokersite.rigs.celery import bench

        with self._run(options) as run:
            systems = bench.open_systems(run.stack, options["compare"], run.scratch)
            for turn in range(options["rounds"]):
                for done, system in enumerate(systems if turn % 2 == 0 else reversed(systems)):
                    part = (turn + done / len(systems)) / options["rounds"]
                    run.progress(part, f"round {turn + 1} of {options['rounds']}: {system.name}")
                    figures = system.measure(options["tasks"], options["producers"], options["worker"].split())
                    run.rounds.add("celery", system.name, figures, system.against)
        self._tell(run.rounds, options, f"{options['tasks']:,} tasks each, {options['producers']} producers", [])

    def do_etl(self, options: dict[str, Any]) -> None:
        for extra in ("etl", "embedded"):
            if problem := extras.problem(extra):
                raise CommandError(problem, returncode=REFUSED)
        from brokersite.rigs.etl import bench

        with self._run(options) as run:
            for turn in range(options["rounds"]):
                run.progress(turn / options["rounds"], f"round {turn + 1} of {options['rounds']}")
                figures = bench.measure(
                    options["rows"], lambda text: run.progress(0.5, text), options["segments"], options["single"]
                )
                run.rounds.add("etl", "export", figures)
        text = f"{options['rows']:,} messages, {options['single']} % with a row each, {options['segments']:,} a segment"
        self._tell(run.rounds, options, text, [])

    @contextmanager
    def _run(self, options: dict[str, Any]) -> Iterator[Run]:
        """A directory, and a stack of what is to be removed at the end, which SIGTERM and Ctrl-C reach too."""
        try:
            with ended_by_sigterm(), terminal_line(self.stderr) as show, ExitStack() as stack:
                scratch = Path(stack.enter_context(TemporaryDirectory(prefix="fivewire-bench-")))
                run = Run(Rounds(), scratch, stack, lambda part, text: show(f"{bar(part)} {text}"))
                yield run
                run.progress(1.0, "removing what was made for it")
        except (BenchError, EtlError, ProcessFailed) as error:
            raise CommandError(str(error), returncode=REFUSED) from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted; what was made for the benchmark is removed.", returncode=REFUSED) from None

    def _tell(self, rounds: Rounds, options: dict[str, Any], text: str, notes: list[str]) -> None:
        if options["json"]:
            given = {name: options[name] for name in sorted(options) if name in _GIVEN and options[name] is not None}
            self.say_json(
                {"at": datetime.now(UTC), "machine": _machine(), "options": given, "verified": rounds.verified()}
                | {"results": rounds.summary(), "notes": notes}
            )
        else:
            tables = rounds.tables(options["markdown"])
            said = [f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}; {options['rounds']} rounds in turns; {text}."]
            for system, counts in rounds.verified().items():
                found = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count or what == "lost")
                said.append(f"{system}: {found}.")
            said += ["Medians (lowest to highest); behind / the first system's figure over this one's.", *notes]
            self.say("\n\n".join([*tables, "\n".join(said)]))
        if verdict := rounds.verdict():
            raise CommandError(verdict, returncode=REFUSED)


_GIVEN = (*MEASUREMENT_OPTIONS, *clients.OPTIONS, "do", "rounds", "measure", "compare", "address", "tasks", "rows")


def _add_load(parser: CommandParser, protocol: str) -> None:
    add = parser.add_argument
    add("--address", metavar="HOST:PORT", help=f"default: {ADDRESSES[protocol]}")
    add("--key", metavar="VALUE", help="default: a key made for the run, and removed")
    add("--tls-ca", metavar="FILE", help="the authority (PEM) of the broker's certificate: use TLS")
    add("--sspq-queue", metavar="NAME", help="the queue of the SSPQ listener; default: BROKER_SSPQ_QUEUE")
    add(
        "--compare", nargs="+", default=[], metavar="SYSTEM",
        help=f"{', '.join((*PROTOCOLS, AUDITED, *OTHERS))}, each in turns with the first; rabbitmq and nats are "
        "started on loopback if installed. After = another place: blipmq=HOST:PORT, rabbitmq=amqp://…, nats=nats://…",
    )  # fmt: skip
    add("--measure", nargs="+", choices=tuple(MEASURES), default=[], metavar="WHAT", help=f"of {', '.join(MEASURES)}")
    add("--seconds", type=_some_seconds, default=2.0, metavar="S", help="of publishing in each; default: %(default)s")
    add("--size", type=number(SMALLEST), default=100, metavar="BYTES", help="of a message; default: %(default)s")
    for name, default, meaning in (
        ("producers", 1, "publishing processes"),
        ("consumers", 1, "consuming processes"),
        ("window", 4000, "most messages sent and not received"),
        ("prefetch", 2000, "most messages that a consumer has unacknowledged"),
        ("rate", 1000 if protocol == "peerbus" else 5000, "messages a second offered for latency"),
        ("subscribers", 5, "of fan-out"),
        ("connections", 200, "opened at once"),
    ):
        add(f"--{name}", type=number(1), default=default, metavar="N", help=f"{meaning}; default: %(default)s")
    _add_output(parser, 3)


def _add_clients(parser: CommandParser) -> None:
    add = parser.add_argument
    add("--blipmq", metavar="HOST:PORT", help=f"default: {ADDRESSES['blipmq']}")
    add("--overhop", metavar="HOST:PORT", help=f"default: {ADDRESSES['overhop']}")
    add("--key", metavar="VALUE", help="default: a key made for the run, and removed")
    add(
        "--compare", nargs="+", default=[], metavar="SYSTEM",
        help="rabbitmq (aio-pika, Celery) and nats (nats-py), or rabbitmq=amqp://…, nats=nats://…",
    )  # fmt: skip
    add(
        "--measure", nargs="+", choices=clients.MEASURES, default=[], metavar="WHAT",
        help=f"of {', '.join(clients.MEASURES)}; default: all but the last",
    )  # fmt: skip
    add("--javascript", action="store_true", help="the programs in JavaScript too: in a checkout, with Node.js and npm")
    add("--size", type=number(SMALLEST), default=100, metavar="BYTES", help="of a message; default: %(default)s")
    for name, default, meaning in (
        ("messages", 100_000, "messages that a program publishes and another one consumes"),
        ("window", 1000, "messages that are confirmed together"),
        ("tasks", 100, "tasks that each await every confirm; jobs that a worker does at once"),
        ("prefetch", 1000, "most messages that a consumer has unacknowledged"),
        ("jobs", 5000, "jobs of a worker's backlog"),
        ("backlog", 1_000_000, "messages in the queue of a program whose memory is measured"),
        ("consumers", 1000, "idle consumers in a process whose memory is measured"),
    ):
        add(f"--{name}", type=number(1), default=default, metavar="N", help=f"{meaning}; default: %(default)s")


def _add_output(parser: CommandParser, rounds: int) -> None:
    parser.add_argument("--rounds", type=number(1), default=rounds, metavar="N", help="default: %(default)s")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print tables for a page")


def _some_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 600:
        raise ArgumentTypeError(f"{text!r} is no time from 0.1 to 600 seconds")
    return value


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} processors, {memory:.0f} GiB, {platform.system()} {platform.machine()}"
